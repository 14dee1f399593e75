#include "checkpoint/save_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/folder_calls.h"
#include "checkpoint/manifest.h"

namespace elixir::checkpoints {
namespace {

Status refused(const std::string& folder, const std::string& why) {
  return error(Code::kInvalidArgument, "cannot save into '{}': {}", folder, why);
}

std::string reason_of(int number) {
  if (number == ENOENT) return "it is missing: make it first";
  if (number == ENOTDIR) return "it is not a folder";
  return errno_status(Code::kInvalidArgument, "it cannot be opened").message();
}

}  // namespace

Result<SavePlace> save_place(const std::string& folder) {
  const size_t end = folder.find_last_not_of('/');
  const std::string path = end == std::string::npos ? "" : folder.substr(0, end + 1);
  const size_t slash = path.rfind('/');
  SavePlace place;
  place.name = slash == std::string::npos ? path : path.substr(slash + 1);
  place.parent_path = slash == std::string::npos ? "." : path.substr(0, slash);
  if (place.parent_path.empty()) place.parent_path.push_back('/');  // GCC 12 warns of an assignment
  if (!is_file_name(place.name)) {
    return refused(folder,
                   "its last part must be a name of letters, digits, '.', '_' and '-', and neither "
                   "'.' nor '..'");
  }
  if (const Status status = check_not_reserved(place.name); !status.ok()) {
    return refused(folder, status.message());
  }
  place.parent.reset(::open(place.parent_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!place.parent.valid()) {
    return refused(folder, fmt::format("its parent '{}': {}", place.parent_path, reason_of(errno)));
  }
  struct stat seen {};
  if (::fstatat(place.parent.get(), place.name.c_str(), &seen, AT_SYMLINK_NOFOLLOW) == 0) {
    return refused(folder, "it exists already, and nothing is overwritten: give another name");
  }
  if (::faccessat(place.parent.get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
    return refused(folder,
                   fmt::format("its parent '{}' is not writable by this user", place.parent_path));
  }
  return place;
}

}  // namespace elixir::checkpoints
