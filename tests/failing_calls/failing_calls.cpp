// A library that stands before libc, preloaded or linked: it counts calls of the system and fails
// one of them as a CallPlan says. The calls are made by syscall(), so that nothing else needs to be
// found. What libc calls inside itself (fopen, the stacks of threads) is not seen.

#include "tests/failing_calls/failing_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#define ELIXIR_STANDS_BEFORE extern "C" __attribute__((visibility("default")))

namespace elixir::testing {
namespace {

#ifndef SO_PEERPIDFD
constexpr int SO_PEERPIDFD = 77;
#endif

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

template <typename... Arguments>
long raw(long number, Arguments... arguments) {
  static auto* const function = next<long(long, ...)>("syscall");
  return function(number, arguments...);
}

CallPlan* mapped_plan() {
  const char* const path = std::getenv(kPlanVariable);
  if (path == nullptr) return nullptr;
  const long fd = raw(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (fd < 0) std::abort();
  const long place =
      raw(SYS_mmap, nullptr, sizeof(CallPlan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
  raw(SYS_close, fd);
  if (place == -1) std::abort();
  return reinterpret_cast<CallPlan*>(place);
}

// Of threads of libzmq's: what they allocate within libstdc++ is libzmq's.
thread_local bool is_libzmqs __attribute__((tls_model("initial-exec"))) = false;

bool of_libzmq(const void* caller) {
  Dl_info info{};
  return ::dladdr(caller, &info) != 0 && info.dli_fname != nullptr &&
         std::strstr(info.dli_fname, "libzmq") != nullptr;
}

// Whether this one is to fail, and how. Sets errno.
bool fails(Call call, const void* caller, Way* way) {
  CallPlan& plan = call_plan();
  const bool libzmqs = of_libzmq(caller) || (call == Call::kAllocate && is_libzmqs);
  const Maker maker = libzmqs ? Maker::kLibzmq : Maker::kElixir;
  const uint64_t number =
      1 + plan.made[static_cast<uint32_t>(maker)][static_cast<uint32_t>(call)].fetch_add(1);
  const uint64_t at = plan.at.load();
  const bool hit = at != 0 && (plan.every     ? number % at == 0
                               : plan.lasting ? number >= at
                                              : number == at);
  if (!hit) return false;
  if (plan.call != call || plan.maker != maker) return false;
  ++plan.failed;
  *way = plan.way;
  errno = plan.failure;
  return true;
}

bool fails(Call call, const void* caller) {
  Way way{};
  return fails(call, caller, &way) && way == Way::kError;
}

// The call, or its failure.
template <typename... Arguments>
int call_or_fail(Call call, const void* caller, long number, Arguments... arguments) {
  return fails(call, caller) ? -1 : static_cast<int>(raw(number, arguments...));
}

// How many bytes to ask for; -1: it fails.
ssize_t asked(Call call, const void* caller, size_t bytes) {
  Way way{};
  if (!fails(call, caller, &way)) return static_cast<ssize_t>(bytes);
  return way == Way::kShort ? static_cast<ssize_t>(std::max<size_t>(1, bytes / 2)) : -1;
}

void drop_descriptors(msghdr* message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; CMSG_LEN(at) < part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      raw(SYS_close, fd);
    }
    message->msg_flags |= MSG_CTRUNC;
  }
  message->msg_controllen = 0;
}

}  // namespace

__attribute__((visibility("default"))) CallPlan& call_plan() {
  static CallPlan own;
  static CallPlan* const plan = mapped_plan();
  return plan == nullptr ? own : *plan;
}

}  // namespace elixir::testing

using namespace elixir::testing;

#define CALLER __builtin_return_address(0)

ELIXIR_STANDS_BEFORE int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  return call_or_fail(Call::kAccept, CALLER, SYS_accept4, listener, address, length, flags);
}

ELIXIR_STANDS_BEFORE int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  return call_or_fail(Call::kEpollControl, CALLER, SYS_epoll_ctl, epoll, what, fd, event);
}

ELIXIR_STANDS_BEFORE int epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  return call_or_fail(Call::kEpollWait, CALLER, SYS_epoll_pwait, epoll, events, most, timeout_ms,
                      nullptr, 8L);
}

ELIXIR_STANDS_BEFORE int eventfd(unsigned count, int flags) noexcept {
  return call_or_fail(Call::kEventfd, CALLER, SYS_eventfd2, count, flags);
}

ELIXIR_STANDS_BEFORE int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return call_or_fail(Call::kFallocate, CALLER, SYS_fallocate, fd, mode, offset, bytes);
}

ELIXIR_STANDS_BEFORE int fsync(int fd) { return call_or_fail(Call::kFsync, CALLER, SYS_fsync, fd); }

ELIXIR_STANDS_BEFORE int ftruncate(int fd, off_t bytes) noexcept {
  return call_or_fail(Call::kFtruncate, CALLER, SYS_ftruncate, fd, bytes);
}

ELIXIR_STANDS_BEFORE int fcntl(int fd, int what, ...) {
  va_list arguments;
  va_start(arguments, what);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  if (what == F_ADD_SEALS && fails(Call::kAddSeals, CALLER)) return -1;
  if (what == F_DUPFD_CLOEXEC && fails(Call::kDuplicate, CALLER)) return -1;
  return static_cast<int>(raw(SYS_fcntl, fd, what, argument));
}

ELIXIR_STANDS_BEFORE int madvise(void* address, size_t bytes, int advice) noexcept {
  if (call_plan().old_kernel && advice == MADV_POPULATE_WRITE) {
    errno = EINVAL;
    return -1;
  }
  return call_or_fail(Call::kMadvise, CALLER, SYS_madvise, address, bytes, advice);
}

ELIXIR_STANDS_BEFORE int memfd_create(const char* name, unsigned flags) noexcept {
  Way way{};
  if (fails(Call::kMemfdCreate, CALLER, &way) && way == Way::kError) return -1;
  const auto fd = static_cast<int>(raw(SYS_memfd_create, name, flags));
  if (way == Way::kLeak) raw(SYS_dup, fd);
  return fd;
}

ELIXIR_STANDS_BEFORE int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return call_or_fail(Call::kMkdir, CALLER, SYS_mkdirat, folder, path, mode);
}

ELIXIR_STANDS_BEFORE void* mmap(void* address, size_t bytes, int protection, int flags, int fd,
                                off_t offset) noexcept {
  // Of memory without a file, malloc's sister: not what elixird is asked about.
  if (fd >= 0 && fails(Call::kMmap, CALLER)) return MAP_FAILED;
  return reinterpret_cast<void*>(raw(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

ELIXIR_STANDS_BEFORE int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  return call_or_fail(Call::kOpen, CALLER, SYS_openat, AT_FDCWD, path, flags, mode);
}

ELIXIR_STANDS_BEFORE int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  return call_or_fail(Call::kOpen, CALLER, SYS_openat, folder, path, flags, mode);
}

ELIXIR_STANDS_BEFORE int getsockopt(int socket, int level, int option, void* value,
                                    socklen_t* length) noexcept {
  if (level == SOL_SOCKET && option == SO_PEERPIDFD) {
    if (call_plan().old_kernel) {
      errno = ENOPROTOOPT;
      return -1;
    }
    if (fails(Call::kPeerProcess, CALLER)) return -1;
  }
  return static_cast<int>(raw(SYS_getsockopt, socket, level, option, value, length));
}

ELIXIR_STANDS_BEFORE int poll(pollfd* entries, nfds_t count, int timeout_ms) {
  return call_or_fail(Call::kPoll, CALLER, SYS_poll, entries, count, timeout_ms);
}

ELIXIR_STANDS_BEFORE ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  const ssize_t ask = asked(Call::kPread, CALLER, bytes);
  return ask < 0 ? -1 : raw(SYS_pread64, fd, buffer, ask, offset);
}

ELIXIR_STANDS_BEFORE ssize_t pwrite(int fd, const void* buffer, size_t bytes, off_t offset) {
  const ssize_t ask = asked(Call::kPwrite, CALLER, bytes);
  return ask < 0 ? -1 : raw(SYS_pwrite64, fd, buffer, ask, offset);
}

ELIXIR_STANDS_BEFORE ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  Way way{};
  if (!fails(Call::kPwrite, CALLER, &way)) return raw(SYS_pwritev, fd, parts, count, offset, 0L);
  if (way == Way::kError) return -1;
  const size_t half = std::max<size_t>(1, parts[0].iov_len / 2);
  return raw(SYS_pwrite64, fd, parts[0].iov_base, half, offset);
}

ELIXIR_STANDS_BEFORE ssize_t read(int fd, void* buffer, size_t bytes) {
  const ssize_t ask = asked(Call::kRead, CALLER, bytes);
  return ask < 0 ? -1 : raw(SYS_read, fd, buffer, ask);
}

ELIXIR_STANDS_BEFORE ssize_t recvmsg(int socket, msghdr* message, int flags) {
  Way way{};
  if (!fails(Call::kReceive, CALLER, &way)) return raw(SYS_recvmsg, socket, message, flags);
  if (way == Way::kError) return -1;
  const size_t bytes = message->msg_iov->iov_len;
  // Of a packet, the rest is lost, as the system says of it.
  if (way == Way::kShort) message->msg_iov->iov_len = 8;
  const ssize_t got = raw(SYS_recvmsg, socket, message, flags);
  message->msg_iov->iov_len = bytes;
  if (got >= 0 && way == Way::kWithoutDescriptors) drop_descriptors(message);
  return got;
}

ELIXIR_STANDS_BEFORE int renameat(int from, const char* old, int to, const char* made) noexcept {
  return call_or_fail(Call::kRename, CALLER, SYS_renameat, from, old, to, made);
}

ELIXIR_STANDS_BEFORE int renameat2(int from, const char* old, int to, const char* made,
                                   unsigned flags) noexcept {
  return call_or_fail(Call::kRename, CALLER, SYS_renameat2, from, old, to, made, flags);
}

ELIXIR_STANDS_BEFORE ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (fails(Call::kSend, CALLER)) return -1;
  return raw(SYS_sendmsg, socket, message, flags);
}

ELIXIR_STANDS_BEFORE int socket(int family, int type, int protocol) noexcept {
  return call_or_fail(Call::kSocket, CALLER, SYS_socket, family, type, protocol);
}

ELIXIR_STANDS_BEFORE int unlinkat(int folder, const char* path, int flags) noexcept {
  return call_or_fail(Call::kUnlink, CALLER, SYS_unlinkat, folder, path, flags);
}

namespace {

struct ThreadOfLibzmq {
  void* (*run)(void*);
  void* argument;
};

void* run_thread_of_libzmq(void* place) {
  const ThreadOfLibzmq thread = *static_cast<ThreadOfLibzmq*>(place);
  std::free(place);
  is_libzmqs = true;
  return thread.run(thread.argument);
}

}  // namespace

ELIXIR_STANDS_BEFORE int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                        void* (*run)(void*), void* argument) noexcept {
  static auto* const function = next<decltype(::pthread_create)>("pthread_create");
  if (fails(Call::kThread, CALLER)) return errno;
  if (!of_libzmq(CALLER)) return function(thread, attributes, run, argument);
  auto* const own = static_cast<ThreadOfLibzmq*>(std::malloc(sizeof(ThreadOfLibzmq)));
  *own = {run, argument};
  return function(thread, attributes, run_thread_of_libzmq, own);
}

ELIXIR_STANDS_BEFORE ssize_t write(int fd, const void* buffer, size_t bytes) {
  const ssize_t ask = asked(Call::kWrite, CALLER, bytes);
  return ask < 0 ? -1 : raw(SYS_write, fd, buffer, ask);
}

// Six arguments are what a call has at most; those that are not given are read and not used.
ELIXIR_STANDS_BEFORE long syscall(long number, ...) noexcept {
  va_list arguments;
  va_start(arguments, number);
  long values[6];
  for (long& value : values) value = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_pidfd_open && fails(Call::kPidfdOpen, CALLER)) return -1;
  const bool waits = number == SYS_futex && values[1] == FUTEX_WAIT;
  if (waits && fails(Call::kFutex, CALLER)) return -1;
  return raw(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

ELIXIR_STANDS_BEFORE int open64(const char* path, int flags, ...) __attribute__((alias("open")));

#ifdef FAILING_ALLOCATIONS

namespace {

bool allocation_fails(const void* caller) {
  return call_plan().call == Call::kAllocate && fails(Call::kAllocate, caller);
}

// Once: the next call of the thread does not, as after something has been given back.
thread_local bool malloc_has_failed __attribute__((tls_model("initial-exec"))) = false;

bool malloc_fails() {
  CallPlan& plan = call_plan();
  if (plan.call != Call::kMalloc || std::exchange(malloc_has_failed, false)) return false;
  malloc_has_failed = fails(Call::kMalloc, nullptr);
  return malloc_has_failed;
}

}  // namespace

__attribute__((visibility("default"))) void* operator new(size_t bytes) {
  void* const place = allocation_fails(CALLER) ? nullptr : std::malloc(bytes);
  if (place == nullptr) throw std::bad_alloc();
  return place;
}

__attribute__((visibility("default"))) void* operator new(size_t bytes,
                                                          const std::nothrow_t&) noexcept {
  return allocation_fails(CALLER) ? nullptr : std::malloc(bytes);
}

ELIXIR_STANDS_BEFORE void* __libc_malloc(size_t bytes) {
  static auto* const function = next<void*(size_t)>("__libc_malloc");
  return malloc_fails() ? nullptr : function(bytes);
}

ELIXIR_STANDS_BEFORE void* __libc_calloc(size_t count, size_t bytes) {
  static auto* const function = next<void*(size_t, size_t)>("__libc_calloc");
  return malloc_fails() ? nullptr : function(count, bytes);
}

ELIXIR_STANDS_BEFORE void* __libc_realloc(void* place, size_t bytes) {
  static auto* const function = next<void*(void*, size_t)>("__libc_realloc");
  return malloc_fails() ? nullptr : function(place, bytes);
}

#endif
