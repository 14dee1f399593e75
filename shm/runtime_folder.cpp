#include "shm/runtime_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/fd.h"
#include "base/folder_names.h"
#include "shm/attach_socket.h"

namespace elixir::shm {
namespace {

constexpr const char* kLaunchPrefix = "launch-";
constexpr std::string_view kAttachSocket = "/attach.sock";

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

std::string named_path(const std::string& explicit_path) {
  return explicit_path.empty() ? setting("ELIXIR_RUNTIME_DIR") : explicit_path;
}

// Only what is this user's own counts: root keeps the user's XDG_RUNTIME_DIR under sudo, and a
// folder of root's in there would lock the user out.
std::string login_path() {
  const std::string login = setting("XDG_RUNTIME_DIR");
  return !login.empty() && is_mine(login) ? login : "";
}

std::string temporary_path() { return "/tmp/elixir-" + std::to_string(::geteuid()); }

// Of services of this user, the nearest one first; never empty. `services`: where the system's are.
std::vector<std::string> service_paths(const std::string& services) {
  std::vector<std::string> own;
  if (const std::string login = login_path(); !login.empty()) own.push_back(login + "/elixir");
  for (const std::string& path : {services + "/elixir-" + user_name(), services + "/elixir"}) {
    if (is_mine(path)) own.push_back(path);
  }
  if (own.empty()) own.push_back(temporary_path());
  return own;
}

std::string launches_path() {
  const std::string login = login_path();
  return login.empty() ? temporary_path() : login + "/elixir-launches";
}

bool serves(const std::string& path) {
  return is_mine(path) && somebody_listens(RuntimeFolder{path}.attach_socket());
}

Result<RuntimeFolder> open_folder(std::string path) {
  std::error_code failure;
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

// The newest first.
std::vector<RuntimeFolder> launch_folders(const std::string& parent) {
  std::vector<std::pair<std::filesystem::file_time_type, std::string>> found;
  std::error_code ignored;
  const std::optional<std::vector<std::string>> names = folder_names(parent);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    if (!name.starts_with(kLaunchPrefix)) continue;
    std::string path = fmt::format("{}/{}", parent, name);
    found.emplace_back(std::filesystem::last_write_time(path, ignored), std::move(path));
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  std::vector<RuntimeFolder> folders;
  for (auto& [time, path] : found) folders.push_back({std::move(path)});
  return folders;
}

// Valid where nobody holds the lock, or the file is not there.
bool take_if_free(const std::string& path, UniqueFd* lock) {
  lock->reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return lock->valid() ? ::flock(lock->get(), LOCK_EX | LOCK_NB) == 0 : errno == ENOENT;
}

// What no elixird and nobody who starts one uses. Other files that lie in it are left, and it, too.
void remove_if_unused(const RuntimeFolder& folder) {
  UniqueFd starting, serving;
  if (!take_if_free(folder.start_lock_file(), &starting)) return;
  if (!take_if_free(folder.lock_file(), &serving)) return;
  for (const std::string& path :
       {folder.attach_socket(), folder.control_socket(), folder.status_socket(), folder.log_file(),
        folder.lock_file(), folder.start_lock_file()}) {
    ::unlink(path.c_str());
  }
  ::rmdir(folder.path.c_str());
}

// The folders of the attach sockets that this network namespace has, whoever's they are. A line of
// /proc/net/unix ends with the path.
std::vector<std::string> bound_paths() {
  std::vector<std::string> paths;
  std::ifstream lines("/proc/net/unix");
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find(" /");
    if (begin == std::string::npos || !line.ends_with(kAttachSocket)) continue;
    line.resize(line.size() - kAttachSocket.size());
    paths.push_back(line.substr(begin + 1));
  }
  return paths;
}

}  // namespace

Result<RuntimeFolder> open_runtime_folder(const std::string& explicit_path,
                                          const std::string& services) {
  if (std::string named = named_path(explicit_path); !named.empty()) {
    return open_folder(std::move(named));
  }
  // A service beside a login: every login has a folder of its own, but nobody listens there.
  const std::vector<std::string> paths = service_paths(services);
  const auto listening = std::find_if(paths.begin(), paths.end(), serves);
  return open_folder(listening == paths.end() ? paths.front() : *listening);
}

Result<DaemonPlaces> daemon_places(const std::string& explicit_path, const std::string& launch,
                                   const std::string& services) {
  if (std::string named = named_path(explicit_path); !named.empty()) {
    Result<RuntimeFolder> folder = open_folder(std::move(named));
    if (!folder.ok()) return folder.status();
    return DaemonPlaces{.own = std::move(*folder)};
  }
  if (launch.empty()) {
    return error(Code::kInvalidArgument,
                 "the launch has no name, by which its elixird is found: set "
                 "LaunchEnvironment::launch or job, or name a folder in ELIXIR_RUNTIME_DIR");
  }
  const Result<RuntimeFolder> launches = open_folder(launches_path());
  if (!launches.ok()) return launches.status();
  DaemonPlaces places;
  places.own.path = fmt::format("{}/{}{:016x}", launches->path, kLaunchPrefix,
                                XXH64(launch.data(), launch.size(), 0));
  places.launch = launch;
  for (const std::string& path : service_paths(services)) {
    if (is_mine(path)) places.services.push_back({path});
  }
  return places;
}

Status make_launch_folder(const RuntimeFolder& folder) {
  ELIXIR_RETURN_IF_ERROR(open_folder(folder.path).status());
  const std::vector<RuntimeFolder> all =
      launch_folders(std::filesystem::path(folder.path).parent_path());
  for (size_t i = kKeptLaunches; i < all.size(); ++i) {
    if (all[i].path != folder.path) remove_if_unused(all[i]);
  }
  return Status();
}

std::vector<RuntimeFolder> listening_folders(const std::string& services) {
  std::vector<std::string> paths = service_paths(services);
  paths.push_back(temporary_path());
  for (const std::string& parent : {launches_path(), temporary_path()}) {
    for (RuntimeFolder& folder : launch_folders(parent)) paths.push_back(std::move(folder.path));
  }
  for (std::string& path : bound_paths()) paths.push_back(std::move(path));
  std::vector<RuntimeFolder> listening;
  for (std::string& path : paths) {
    const auto same = [&path](const RuntimeFolder& folder) { return folder.path == path; };
    if (std::any_of(listening.begin(), listening.end(), same)) continue;
    if (serves(path)) listening.push_back({std::move(path)});
  }
  return listening;
}

}  // namespace elixir::shm
