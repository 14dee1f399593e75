#include "shm/runtime_folder.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "shm/attach_socket.h"

namespace elixir::shm {
namespace {

std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_mine(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

std::string user_name() {
  const passwd* const user = ::getpwuid(::geteuid());
  return user == nullptr ? "" : user->pw_name;
}

// `services`: where the folders of services are.
std::string choose_path(const std::string& explicit_path, const std::string& services) {
  if (!explicit_path.empty()) return explicit_path;
  if (const std::string path = setting("ELIXIR_RUNTIME_DIR"); !path.empty()) return path;
  // Only what is this user's own: root keeps the user's XDG_RUNTIME_DIR under sudo, and a folder of
  // root's in there would lock the user out.
  std::vector<std::string> own;
  const std::string login = setting("XDG_RUNTIME_DIR");
  if (!login.empty() && is_mine(login)) own.push_back(login + "/elixir");
  for (const std::string& path : {services + "/elixir-" + user_name(), services + "/elixir"}) {
    if (is_mine(path)) own.push_back(path);
  }
  // A service beside a login: every login has a folder of its own, but nobody listens there.
  for (const std::string& path : own) {
    if (is_mine(path) && somebody_listens(RuntimeFolder{path}.attach_socket())) return path;
  }
  return own.empty() ? "/tmp/elixir-" + std::to_string(::geteuid()) : own.front();
}

}  // namespace

Result<RuntimeFolder> open_runtime_folder(const std::string& explicit_path,
                                          const std::string& services) {
  std::error_code failure;
  std::string path = choose_path(explicit_path, services);
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
