#include "shm/runtime_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace elixir::shm {
namespace {

std::string choose_path(const std::string& explicit_path) {
  if (!explicit_path.empty()) return explicit_path;
  if (const char* path = std::getenv("ELIXIR_RUNTIME_DIR"); path != nullptr && *path != '\0') {
    return path;
  }
  if (const char* path = std::getenv("XDG_RUNTIME_DIR"); path != nullptr && *path != '\0') {
    return std::string(path) + "/elixir";
  }
  struct stat info {};
  if (::stat("/run/elixir", &info) == 0 && info.st_uid == ::geteuid()) return "/run/elixir";
  return "/tmp/elixir-" + std::to_string(::geteuid());
}

}  // namespace

Result<RuntimeFolder> open_runtime_folder(const std::string& explicit_path) {
  std::error_code failure;
  std::string path = choose_path(explicit_path);
  // What is started from here may work in another folder.
  const std::filesystem::path absolute = std::filesystem::absolute(path, failure);
  if (!failure) path = absolute.lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();  // lstat follows "link/"
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, failure);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return errno_status(Code::kInvalidArgument,
                        "cannot create the runtime folder " + path +
                            " (set ELIXIR_RUNTIME_DIR to a folder of yours)");
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return error(Code::kInvalidArgument, "the runtime folder {} is not a folder", path);
  }
  if (info.st_uid != ::geteuid() || (info.st_mode & 0022) != 0) {
    return error(Code::kInvalidArgument,
                 "the runtime folder {} belongs to another user or others may write to it; set "
                 "ELIXIR_RUNTIME_DIR to a folder of yours with mode 0700",
                 path);
  }
  return RuntimeFolder{path};
}

}  // namespace elixir::shm
