#include "checkpoint/folder_calls.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>

#include "base/folder_names.h"
#include "checkpoint/listing.h"
#include "checkpoint/manifest.h"
#include "checkpoint/new_file.h"

namespace elixir::checkpoints {
namespace {

constexpr std::string_view kDeleting = ".deleting-";

Status name_taken(int parent, const std::string& name) {
  return error(Code::kInvalidArgument,
               "{}/{} exists already: nothing is written over; remove it, or give another name",
               path_of(parent), name);
}

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
                   "{}: {}: the folder must be writable for user {}, who runs this process", what,
                   std::strerror(errno), ::geteuid());
    case EIO:
      return error(Code::kInternal,
                   "{}: {}: look at the disk (the kernel's log says more), or save elsewhere", what,
                   std::strerror(errno));
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

bool is_named(int parent, const std::string& name, int folder) {
  struct stat named {};
  struct stat open {};
  return ::fstatat(parent, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(folder, &open) == 0 && named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

Result<UniqueFd> open_again(int folder) {
  UniqueFd fd(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) return fd;
  if (errno != EACCES) return write_status(fmt::format("cannot open {}", path_of(folder)));
  return error(Code::kInvalidArgument,
               "cannot open {}: the folder must also be readable for user {}, who runs this "
               "process: files are synced through it",
               path_of(folder), ::geteuid());
}

Result<std::vector<std::string>> names_in(int folder) {
  // Of its own, since the place where reading stands belongs to the opened file.
  std::optional<std::vector<std::string>> names =
      folder_names(UniqueFd(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!names) return errno_status(Code::kBadInput, path_of(folder));
  return std::move(*names);
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

Status write_all(int fd, std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote == 0) errno = EIO;  // no file system may
    if (wrote <= 0) return write_status(fmt::format("cannot write {}", path_of(fd)));
    offset += static_cast<uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  return Status();
}

Status write_all(int fd, std::span<iovec> parts, uint64_t offset) {
  while (!parts.empty()) {
    const auto count = static_cast<int>(std::min<size_t>(parts.size(), IOV_MAX));
    const ssize_t wrote = ::pwritev(fd, parts.data(), count, static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote == 0) errno = EIO;  // no file system may
    if (wrote <= 0) return write_status(fmt::format("cannot write {}", path_of(fd)));
    offset += static_cast<uint64_t>(wrote);
    for (auto left = static_cast<size_t>(wrote); left > 0;) {
      iovec& part = parts.front();
      const size_t taken = std::min(left, part.iov_len);
      part = {static_cast<std::byte*>(part.iov_base) + taken, part.iov_len - taken};
      left -= taken;
      if (part.iov_len == 0) parts = parts.subspan(1);
    }
  }
  return Status();
}

Status sync_folder(int folder) {
  if (::fsync(folder) == 0) return Status();
  UniqueFd readable;
  if (errno == EBADF) {  // O_PATH
    Result<UniqueFd> again = open_again(folder);
    if (!again.ok()) return again.status();
    readable = std::move(*again);
    if (::fsync(readable.get()) == 0) return Status();
  }
  // fsync(2) says EINVAL of what cannot be synced, FUSE and file servers one of the others.
  const bool cannot = errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS || errno == EBADF;
  return cannot ? Status() : write_status(fmt::format("fsync of {}", path_of(folder)));
}
Status sync_file(int fd) {
  if (::fsync(fd) == 0) return Status();
  return write_status(fmt::format("fsync of {}", path_of(fd)));
}

Status check_not_taken(int parent, const std::string& name) {
  struct stat about {};
  return ::fstatat(parent, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0
             ? name_taken(parent, name)
             : Status();
}

Status rename_to_new(int parent, const std::string& from, const std::string& to) {
  if (::renameat2(parent, from.c_str(), parent, to.c_str(), RENAME_NOREPLACE) == 0) return Status();
  if (errno == EINVAL || errno == ENOSYS) {
    ELIXIR_RETURN_IF_ERROR(check_not_taken(parent, to));
    if (errno == ENOENT && ::renameat(parent, from.c_str(), parent, to.c_str()) == 0) {
      return Status();
    }
  }
  if (errno == EEXIST) return name_taken(parent, to);
  return write_status(fmt::format("cannot rename {}/{} to {}", path_of(parent), from, to));
}

std::string unfinished_name(const std::string& name, const std::string& tag) {
  return fmt::format("{}{}{}", name, kUnfinished, tag);
}
std::string deleting_name(const std::string& name) { return fmt::format("{}{}", kDeleting, name); }

Status check_not_reserved(std::string_view name) {
  const auto refused = [&](std::string_view why) {
    return error(Code::kInvalidArgument,
                 "'{}' cannot be a checkpoint's name: {}; give it another, such as {}", name, why,
                 step_name(1));
  };
  if (name.starts_with('.')) return refused("names that begin with '.' are for locks and removals");
  for (const std::string_view part : {kUnfinished, kPartial}) {
    if (name.find(part) != name.npos) {
      return refused(fmt::format("names with '{}' are for what is not whole yet", part));
    }
  }
  if (is_own_file(name) || name == "config.json" || name == "user") {
    return refused("a checkpoint has an entry of this name, so its parent would look like one");
  }
  return Status();
}

std::string save_tag(int pid, uint64_t job) { return fmt::format("{}-{}", pid, job); }

bool is_unfinished_save(const std::string& entry) {
  const size_t end = entry.find(kUnfinished);
  if (end == std::string::npos || end == 0 || entry.starts_with('.')) return false;
  const std::string tag = entry.substr(end + kUnfinished.size());
  const size_t dash = tag.find('-');
  const auto number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return is_file_name(entry) && dash != std::string::npos && number(tag.substr(0, dash)) &&
         number(tag.substr(dash + 1));
}

bool is_left_over(const std::string& entry, const std::string& name) {
  const std::string_view all = entry;
  if (all.starts_with(kDeleting)) return step_of_name(all.substr(kDeleting.size())).has_value();
  const size_t end = all.rfind(kUnfinished);
  if (end == std::string_view::npos) return false;
  const std::string_view of = all.substr(0, end);
  return of == name || step_of_name(of).has_value();
}

}  // namespace elixir::checkpoints
