#include "models/default_text.h"

#include <algorithm>
#include <charconv>
#include <compare>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>

namespace elixir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy = "name text files with --data FILE..., or run scripts/setup.sh";

// 11 of ".../python3.11"; nullopt for another name or a folder without a standard library.
std::optional<int> minor_version(const fs::path& folder) {
  constexpr std::string_view kPrefix = "python3.";
  const std::string name = folder.filename();
  std::error_code ignored;
  if (!name.starts_with(kPrefix) || !fs::exists(folder / "os.py", ignored)) return std::nullopt;
  int minor = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, minor);
  return parsed.ptr == end ? std::optional(minor) : std::nullopt;
}

// The newest python3.* of a lib folder.
std::optional<fs::path> newest_library(const fs::path& lib) {
  std::optional<fs::path> newest;
  int newest_minor = -1;
  std::error_code failure;
  for (const fs::directory_entry& entry : fs::directory_iterator(lib, failure)) {
    const int minor = minor_version(entry.path()).value_or(-1);
    if (minor > newest_minor) {
      newest = entry.path();
      newest_minor = minor;
    }
  }
  return newest;
}

// The value of `key = value` in a pyvenv.cfg; "" when it is not there.
std::string venv_setting(const fs::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos && line.substr(0, equals) == key)
      return line.substr(equals + 3);
  }
  return "";
}

std::optional<fs::path> library_of_venv(const fs::path& venv) {
  const std::string home = venv_setting(venv / "pyvenv.cfg", "home");
  if (home.empty()) return std::nullopt;
  const fs::path lib = fs::path(home).parent_path() / "lib";
  // "3.11.7": its own version where several are installed side by side.
  const std::string version = venv_setting(venv / "pyvenv.cfg", "version");
  const fs::path own = lib / ("python" + version.substr(0, version.rfind('.')));
  return minor_version(own) ? std::optional(own) : newest_library(lib);
}

bool is_left_out(const fs::path& folder) {
  static const std::set<std::string> names = {"test",          "tests",         "__pycache__",
                                              "site-packages", "dist-packages", "idle_test"};
  return names.contains(folder.filename());
}

struct Source {
  bool in_package = false;
  std::string path;
  uint64_t size_bytes = 0;

  auto operator<=>(const Source&) const = default;
};

// Unsorted, and silent about folders that cannot be read.
void collect_sources(const fs::path& library, std::vector<Source>& sources) {
  std::error_code failure;
  fs::recursive_directory_iterator entries(library, fs::directory_options::skip_permission_denied,
                                           failure);
  for (; !failure && entries != fs::recursive_directory_iterator(); entries.increment(failure)) {
    std::error_code ignored;
    if (entries->is_directory(ignored)) {
      if (is_left_out(entries->path())) entries.disable_recursion_pending();
    } else if (entries->path().extension() == ".py" && entries->is_regular_file(ignored)) {
      const uint64_t size_bytes = entries->file_size(ignored);
      if (ignored || size_bytes == 0) continue;
      sources.push_back({entries.depth() > 0, entries->path(), size_bytes});
    }
  }
}

}  // namespace

Result<fs::path> find_python_library(const fs::path& near) {
  std::error_code ignored;
  for (fs::path folder = near;; folder = folder.parent_path()) {
    if (fs::exists(folder / ".venv" / "pyvenv.cfg", ignored)) {
      if (auto library = library_of_venv(folder / ".venv")) return *library;
    }
    if (!folder.has_relative_path()) break;
  }
  for (const char* lib : {"/usr/local/lib", "/usr/lib"}) {
    if (auto library = newest_library(lib)) return *library;
  }
  return error(Code::kBadInput,
               "no --data given, and the default text, the Python standard library's sources, is "
               "neither with a .venv at or above {} nor in /usr/lib/python3.*; {}",
               near.string(), kRemedy);
}

Result<std::vector<std::string>> python_sources(const fs::path& library) {
  std::vector<Source> sources;
  collect_sources(library, sources);
  std::sort(sources.begin(), sources.end());
  std::vector<std::string> paths;
  uint64_t total_bytes = 0;
  for (const Source& source : sources) {
    if (total_bytes + source.size_bytes > kDefaultTextBytes) break;
    total_bytes += source.size_bytes;
    paths.push_back(source.path);
  }
  if (paths.empty()) {
    return error(Code::kBadInput, "no --data given, and {} holds no Python sources; {}",
                 library.string(), kRemedy);
  }
  return paths;
}

Result<std::vector<std::string>> default_text() {
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  Result<fs::path> library = find_python_library(failure ? fs::path("/") : program.parent_path());
  if (!library.ok()) return library.status();
  return python_sources(*library);
}

}  // namespace elixir
