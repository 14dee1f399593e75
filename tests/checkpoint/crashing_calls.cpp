#include "tests/checkpoint/crashing_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

extern "C" {
ssize_t __real_pwrite(int fd, const void* bytes, size_t count, off_t offset);
int __real_fsync(int fd);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_renameat(int from_folder, const char* from, int to_folder, const char* to);
int __real_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned flags);
int __real_mkdirat(int folder, const char* name, mode_t mode);
int __real_openat(int folder, const char* name, int flags, ...);
int __real_unlinkat(int folder, const char* name, int flags);
}

namespace elixir::checkpoints::testing {
namespace {

constexpr size_t kMostWritten = 1000;  // by a pwrite: the rest is asked for again

struct Made {
  int folder = -1;
  ino_t folder_inode = 0;
  std::string name, renamed_from;
};

struct State {
  bool armed = false;
  CallPlan plan;
  CallsMade made;
  std::map<ino_t, int> unsynced;     // files with bytes that no fsync has had, open
  std::vector<Made> unsynced_names;  // in the order in which they came
  std::set<ino_t> failed_syncs;
};
State& state() {
  static State state;
  return state;
}

struct stat about(int fd) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) about = {};
  return about;
}

std::string path_of(int fd) {
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
}

// At each call: whether it fails. Does not return where the process ends.
bool fails() {
  State& now = state();
  if (!now.armed) return false;
  const uint64_t call = ++now.made.calls;
  const bool hit = now.plan.lasting ? call >= now.plan.at : call == now.plan.at;
  if (now.plan.what == CallPlan::At::kNever || !hit) return false;
  if (now.plan.what == CallPlan::At::kCrash) crash(now.plan.loss);
  ++now.made.failed;
  errno = now.plan.failure;
  return true;
}
// Whether the next call is the one at which the process ends.
bool crashes_next() {
  const State& now = state();
  return now.armed && now.plan.what == CallPlan::At::kCrash && now.made.calls + 1 == now.plan.at;
}

void note_bytes(int fd) {
  State& now = state();
  if (now.armed) now.unsynced.try_emplace(about(fd).st_ino, ::dup(fd));
}
void note_name(int folder, const char* name, const char* renamed_from = "") {
  State& now = state();
  if (!now.armed || now.plan.plain) return;
  now.unsynced_names.push_back({::dup(folder), about(folder).st_ino, name, renamed_from});
}

bool is_plain() { return state().armed && state().plan.plain; }

void fill_with_zeros(int fd) {
  const std::vector<char> zeros(static_cast<size_t>(about(fd).st_size));
  if (__real_pwrite(fd, zeros.data(), zeros.size(), 0) != std::ssize(zeros)) ::_exit(98);
}

}  // namespace

void arm(const CallPlan& plan) {
  state() = State();
  state().plan = plan;
  state().armed = true;
}

CallsMade disarm() {
  state().armed = false;
  return state().made;
}

void crash(Loss loss) {
  State& now = state();
  now.armed = false;
  if (loss != Loss::kNothing) {
    for (const auto& [inode, fd] : now.unsynced) fill_with_zeros(fd);
  }
  if (loss == Loss::kAll) {
    std::reverse(now.unsynced_names.begin(), now.unsynced_names.end());
    for (const Made& made : now.unsynced_names) {
      if (made.renamed_from.empty()) {
        std::filesystem::remove_all(path_of(made.folder) + "/" + made.name);
      } else {
        __real_renameat(made.folder, made.name.c_str(), made.folder, made.renamed_from.c_str());
      }
    }
  }
  ::_exit(kCrashed);
}

}  // namespace elixir::checkpoints::testing

using namespace elixir::checkpoints::testing;  // NOLINT: the calls below are all of this file's

extern "C" {

ssize_t __wrap_pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  if (crashes_next()) {
    note_bytes(fd);
    if (__real_pwrite(fd, bytes, count / 2, offset) < 0) ::_exit(98);
  }
  if (fails()) return -1;
  note_bytes(fd);
  return __real_pwrite(fd, bytes, std::min(count, kMostWritten), offset);
}

// Nothing is synced in truth: the tests' losses are their own.
int __wrap_fsync(int fd) {
  State& now = state();
  const ino_t inode = about(fd).st_ino;
  const bool folder = S_ISDIR(about(fd).st_mode);
  if (!folder && now.failed_syncs.contains(inode)) now.made.synced_again = true;
  if (fails()) {
    if (!folder) now.failed_syncs.insert(inode);
    return -1;
  }
  if ((::fcntl(fd, F_GETFL) & O_PATH) != 0) {
    errno = EBADF;
    return -1;
  }
  if (folder && is_plain()) {
    errno = now.plan.sync_folder_failure;
    return -1;
  }
  if (folder) {
    std::erase_if(now.unsynced_names, [&](const Made& made) { return made.folder_inode == inode; });
  } else if (!now.plan.lying_fsync || path_of(fd).ends_with("/elixir.json")) {
    now.unsynced.erase(inode);
  }
  return 0;
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (fails()) return -1;
  if (is_plain()) {
    errno = EOPNOTSUPP;
    return -1;
  }
  note_bytes(fd);
  return __real_fallocate(fd, mode, offset, bytes);
}

int __wrap_renameat(int from_folder, const char* from, int to_folder, const char* to) {
  if (fails()) return -1;
  const int done = __real_renameat(from_folder, from, to_folder, to);
  if (done == 0) note_name(to_folder, to, from);
  return done;
}

int __wrap_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned flags) {
  if (fails()) return -1;
  if (is_plain()) {
    errno = EINVAL;
    return -1;
  }
  const int done = __real_renameat2(from_folder, from, to_folder, to, flags);
  if (done == 0) note_name(to_folder, to, from);
  return done;
}

int __wrap_mkdirat(int folder, const char* name, mode_t mode) {
  if (fails()) return -1;
  const int done = __real_mkdirat(folder, name, mode);
  if (done == 0) note_name(folder, name);
  return done;
}

int __wrap_openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (fails()) return -1;
  const int fd = __real_openat(folder, name, flags, mode);
  if (fd >= 0 && (flags & O_EXCL) != 0) note_name(folder, name);
  return fd;
}

// Lasting at once, which is the worst of what a file system may do.
int __wrap_unlinkat(int folder, const char* name, int flags) {
  if (fails()) return -1;
  return __real_unlinkat(folder, name, flags);
}
}
