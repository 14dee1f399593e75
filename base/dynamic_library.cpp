#include "base/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>

#include "base/subprocess.h"

namespace elixir {
namespace {

bool is_bare_name(const std::string& candidate) { return candidate.find('/') == std::string::npos; }

std::string loader_text() {
  const char* text = ::dlerror();
  return text == nullptr ? "the loader gives no reason" : text;
}

// The bare name was looked up by the loader: where it was found only the loader knows.
std::string path_of(void* handle, const std::string& candidate) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return candidate;
  return map->l_name[0] == '\0' ? candidate : map->l_name;
}

Status not_found(const LibrarySearch& search, const std::vector<std::string>& candidates) {
  return error(Code::kUnavailable, "{} was not found; looked for {}{}; {}", search.file_name,
               fmt::join(candidates, ", "),
               is_bare_name(candidates.back()) ? " (by the system's loader)" : "", search.remedy);
}

Status not_loadable(const LibrarySearch& search, const std::string& path) {
  return error(Code::kUnavailable,
               "{} exists but cannot be loaded: {}; build it again on the machine where it runs, "
               "or name another one with {}",
               path, loader_text(), search.variable);
}

}  // namespace

std::vector<std::string> library_candidates(const LibrarySearch& search) {
  const char* named = search.variable.empty() ? nullptr : std::getenv(search.variable.c_str());
  if (named != nullptr && *named != '\0') return {named};
  const std::string folder = program_folder();
  std::vector<std::string> candidates = {folder + "/" + search.file_name};
  for (const std::string& subfolder : search.lib_subfolders) {
    candidates.push_back(fmt::format("{}/../lib/{}/{}", folder, subfolder, search.file_name));
  }
  candidates.push_back(folder + "/../lib/" + search.file_name);
  if (const std::string beside = library_folder(); beside != folder) {
    candidates.push_back(beside + "/" + search.file_name);
  }
  if (!search.build_path.empty()) candidates.push_back(search.build_path);
  candidates.push_back(search.file_name);
  return candidates;
}

Result<DynamicLibrary> DynamicLibrary::load(const LibrarySearch& search) {
  const std::vector<std::string> candidates = library_candidates(search);
  for (const std::string& candidate : candidates) {
    const bool bare = is_bare_name(candidate);
    if (!bare && ::access(candidate.c_str(), F_OK) != 0) continue;
    // All symbols now: one that is missing is an error here, not in the middle of a step.
    void* handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return DynamicLibrary(handle, path_of(handle, candidate));
    if (!bare) return not_loadable(search, candidate);
  }
  return not_found(search, candidates);
}

Result<void*> DynamicLibrary::symbol(const char* name) const {
  ::dlerror();  // forgets an older one
  void* found = ::dlsym(handle_, name);
  if (found == nullptr) {
    return error(Code::kVersionMismatch,
                 "{} has no function {} ({}): it is of another version; install or build it "
                 "together with this program",
                 path_, name, loader_text());
  }
  return found;
}

}  // namespace elixir
