#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/printable.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/listing.h"

namespace elixir::checkpoints {
namespace {

constexpr size_t kMostHolderBytes = 200;

std::string line_of(const std::string& job) { return job + "\n"; }

// What the file begins with; anybody may have written it.
std::string first_bytes(int fd, size_t most) {
  std::string found(most, '\0');
  const ssize_t bytes = ::pread(fd, found.data(), found.size(), 0);
  found.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
  return found;
}

// Held by somebody: this process, which does not hold it, cannot have it. Where there are no locks
// the name alone has to do.
bool is_locked(int fd) {
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0) return errno != EINTR;
  ::flock(fd, LOCK_UN);
  return false;
}

// A job that was killed may have left its name: it is another start's, or not locked.
bool is_held_by(int folder, const std::string& job) {
  const UniqueFd fd(::openat(folder, kLockName, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return false;
  const std::string line = line_of(job);
  return first_bytes(fd.get(), line.size()) == line && is_locked(fd.get());
}

}  // namespace

std::string unfinished_in(int folder) {
  const Result<std::vector<std::string>> names = names_in(folder);
  if (!names.ok()) return "";
  const auto found = std::find_if(names->begin(), names->end(), [&](const std::string& name) {
    return is_unfinished_save(name) && open_subfolder(folder, name).valid();
  });
  return found == names->end() ? "" : *found;
}

Result<HeldLock> hold_folder(int folder, double timeout_s) {
  struct stat seen {};
  if (::fstat(folder, &seen) != 0) return errno_status(Code::kInternal, path_of(folder));
  static Mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<const UniqueFd>> locks;
  const MutexLock lock(mutex);
  std::weak_ptr<const UniqueFd>& kept = locks[{seen.st_dev, seen.st_ino}];
  HeldLock held = kept.lock();
  if (held) return held;
  const Result<int> fd = lock_folder(folder, timeout_s);
  if (!fd.ok()) return fd.status();
  held = std::make_shared<const UniqueFd>(*fd);
  kept = held;
  return held;
}

Status write_holder(int lock, const std::string& job) {
  char host[HOST_NAME_MAX + 1] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  const std::string text =
      line_of(job) + fmt::format("process {} on {:.64}\n", ::getpid(), std::string_view(host));
  if (::ftruncate(lock, 0) != 0) {
    return write_status(fmt::format("cannot write {}", path_of(lock)));
  }
  return write_all(lock, std::as_bytes(std::span(text)), 0);
}

std::string holder_of(int lock) {
  const std::string text = first_bytes(lock, kMostHolderBytes);
  const size_t begin = std::min(text.find('\n'), text.size() - 1) + 1;
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  return line.starts_with("process ") ? printable(line) : "another job";
}

Status await_holder(int folder, const std::string& job, double timeout_s) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  const int64_t begin_ns = monotonic_ns();
  while (!is_held_by(folder, job)) {
    const double waited_s = seconds_since(begin_ns);
    const bool over = waited_s >= timeout_s &&
                      (waited_s >= timeout_s + kFinishingSeconds || unfinished_in(folder).empty());
    if (over) {
      return error(
          Code::kTimedOut,
          "{}: rank 0 of this job has not locked it for {:.0f} s: its own message says why",
          path_of(folder), timeout_s);
    }
    std::this_thread::sleep_for(kPause);
  }
  return Status();
}

}  // namespace elixir::checkpoints
