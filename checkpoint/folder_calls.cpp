#include "checkpoint/folder_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

#include "checkpoint/listing.h"

namespace elixir::checkpoints {
namespace {

constexpr std::string_view kDeleting = ".deleting-";

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

}  // namespace

std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "a folder";
}

Status write_status(const std::string& what) {
  switch (errno) {
    case ENOSPC:
    case EDQUOT:
      return error(Code::kResourceExhausted,
                   "{}: {}: make room there, keep fewer checkpoints, or save elsewhere", what,
                   std::strerror(errno));
    case EACCES:
    case EPERM:
    case EROFS:
      return error(Code::kInvalidArgument,
                   "{}: {}: the folder must be writable by user {}, as whom this process writes",
                   what, std::strerror(errno), ::geteuid());
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return errno_status(Code::kInvalidArgument, what);
    default:
      return errno_status(Code::kInternal, what);
  }
}

UniqueFd open_subfolder(int parent, const std::string& name) {
  return UniqueFd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

Result<std::vector<std::string>> names_in(int folder) {
  // Of its own, since the place where reading stands belongs to the opened file.
  UniqueFd fd(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(Code::kBadInput, path_of(folder));
  const std::unique_ptr<DIR, CloseFolder> entries(::fdopendir(fd.get()));
  if (entries == nullptr) return errno_status(Code::kBadInput, path_of(folder));
  fd.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return errno_status(Code::kBadInput, path_of(folder));
  return names;
}

Status remove_folder(int parent, const std::string& name, int levels) {
  const auto failed = [&](const std::string& what) {
    return write_status(fmt::format("cannot remove {}/{}", path_of(parent), what));
  };
  const UniqueFd folder = open_subfolder(parent, name);
  if (!folder.valid()) return failed(name);
  const Result<std::vector<std::string>> names = names_in(folder.get());
  if (!names.ok()) return names.status();
  for (const std::string& file : *names) {
    if (::unlinkat(folder.get(), file.c_str(), 0) == 0 || errno == ENOENT) continue;
    // Of a folder Linux says EISDIR, and POSIX EPERM.
    if ((errno != EISDIR && errno != EPERM) || levels <= 1)
      return failed(fmt::format("{}/{}", name, file));
    ELIXIR_RETURN_IF_ERROR(remove_folder(folder.get(), file, levels - 1));
  }
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0) return Status();
  return failed(name);
}

std::string unfinished_name(const std::string& name, const std::string& tag) {
  return fmt::format("{}{}{}", name, kUnfinished, tag);
}
std::string deleting_name(const std::string& name) { return fmt::format("{}{}", kDeleting, name); }

bool is_left_over(const std::string& entry, const std::string& name) {
  const std::string_view all = entry;
  if (all.starts_with(kDeleting)) return step_of_name(all.substr(kDeleting.size())).has_value();
  const size_t end = all.rfind(kUnfinished);
  if (end == std::string_view::npos) return false;
  const std::string_view of = all.substr(0, end);
  return of == name || step_of_name(of).has_value();
}

}  // namespace elixir::checkpoints
