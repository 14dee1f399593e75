#include "client/train/save_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/throw_error.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/manifest.h"

namespace elixir {
namespace {

// The last save of a job that was killed may still be under way in elixird.
constexpr double kLockSeconds = 30;

Error refused(const std::string& folder, const std::string& why) {
  return Error(error(Code::kInvalidArgument, "cannot save into '{}': {}", folder, why));
}

std::string reason_of(int number) {
  if (number == ENOENT) return "it is missing: make it first";
  if (number == ENOTDIR) return "it is not a folder";
  return errno_status(Code::kInvalidArgument, "it cannot be opened").message();
}

}  // namespace

SavePlace save_place(const std::string& folder) {
  const size_t end = folder.find_last_not_of('/');
  const std::string path = end == std::string::npos ? "" : folder.substr(0, end + 1);
  const size_t slash = path.rfind('/');
  SavePlace place;
  place.name = slash == std::string::npos ? path : path.substr(slash + 1);
  place.parent_path = slash == std::string::npos ? "." : path.substr(0, slash);
  if (place.parent_path.empty()) place.parent_path = "/";
  if (!checkpoints::is_file_name(place.name)) {
    throw refused(folder,
                  "its last part is to be a name of letters, digits, '.', '_' and '-', none of "
                  "'.' and '..'");
  }
  if (const Status status = checkpoints::check_not_reserved(place.name); !status.ok()) {
    throw refused(folder, status.message());
  }
  place.parent.reset(::open(place.parent_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!place.parent.valid()) {
    throw refused(folder, fmt::format("its parent '{}': {}", place.parent_path, reason_of(errno)));
  }
  struct stat seen {};
  if (::fstatat(place.parent.get(), place.name.c_str(), &seen, AT_SYMLINK_NOFOLLOW) == 0) {
    throw refused(folder, "it is there already, and nothing is overwritten: give another name");
  }
  if (::faccessat(place.parent.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    throw refused(folder,
                  fmt::format("its parent '{}' is not writable by this user", place.parent_path));
  }
  return place;
}

std::shared_ptr<const UniqueFd> lock_of(const SavePlace& place) {
  return value_or_throw(checkpoints::hold_folder(place.parent.get(), kLockSeconds));
}

}  // namespace elixir
