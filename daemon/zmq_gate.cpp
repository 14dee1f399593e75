#include "daemon/zmq_gate.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <new>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mutex.h"
#include "daemon/heap_reserve.h"
#include "daemon/zmtp_meter.h"
#include "shm/peer_bytes.h"

namespace elixir::daemon {
namespace {

// libzmq hands on what it reads in an order that the thread sanitizer does not see: it is not
// compiled with it. As where libzmq reads itself, the sanitizer sees no writes.
ssize_t read_for_libzmq(int socket, msghdr* message, int flags) {
#if defined(__SANITIZE_THREAD__)
  return ::syscall(SYS_recvmsg, socket, message, flags);
#else
  return ::recvmsg(socket, message, flags);
#endif
}

// So that a thread of libzmq does not turn round and round while nothing can be accepted.
constexpr useconds_t kRestMicroseconds = 10'000;
constexpr int kMostRests = 1000;  // 10 s

template <typename Function>
Function* of_libc(const char* name) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  ELIXIR_CHECK(found != nullptr, "libc has no {}", name);
  return reinterpret_cast<Function*>(found);
}

int real_accept(int listener, sockaddr* address, socklen_t* length, int flags) {
  static auto* const function = of_libc<decltype(::accept4)>("accept4");
  return function(listener, address, length, flags);
}

int real_close(int fd) {
  static auto* const function = of_libc<decltype(::close)>("close");
  return function(fd);
}

UniqueFd spare_descriptor() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

class Gate {
 public:
  void add(int listener, uint32_t max_connections) {
    const int flags = ::fcntl(listener, F_GETFL);
    ELIXIR_CHECK(flags >= 0 && (flags & O_NONBLOCK) != 0, "listener {} would block the gate",
                 listener);
    const MutexLock lock(mutex_);
    in_use_.store(true, std::memory_order_relaxed);
    listeners_[listener] = max_connections;
    if (!spare_.valid()) spare_ = spare_descriptor();
  }

  void remove(int listener) {
    const MutexLock lock(mutex_);
    listeners_.erase(listener);
  }

  void refuse_from(int first_refused) {
    const MutexLock lock(mutex_);
    first_refused_ = first_refused;
  }

  void ring(int eventfd) {
    const MutexLock lock(mutex_);
    eventfd_ = eventfd;
  }

  GateCounts take_counts() {
    const MutexLock lock(mutex_);
    return std::exchange(counts_, {});
  }

  void note_brought(int socket, Brought what) {
    const MutexLock lock(mutex_);
    const auto found = connections_.find(socket);
    if (found == connections_.end()) return;  // it has been closed since
    found->second.may_stay = found->second.may_stay || what == Brought::kHello;
    found->second.since_ns = monotonic_ns();
  }

  // Under the mutex a connection that is found has not been closed: empty() takes it out before.
  bool end_silent(int64_t now_ns) {
    const MutexLock lock(mutex_);
    bool others = false;
    for (auto& [socket, connection] : connections_) {
      if (connection.may_stay || connection.ended) continue;
      const bool over = now_ns - connection.since_ns > kSilentConnectionNs;
      connection.ended = std::exchange(connection.over, over) && over;
      others = others || !connection.ended;
      if (!connection.ended) continue;
      ::shutdown(socket, SHUT_RDWR);
      count(&GateCounts::silent);
    }
    return others;
  }

  bool guards(int listener) {
    const MutexLock lock(mutex_);
    return listeners_.contains(listener);
  }

  // A connection to a listener that is guarded, or -1 with an errno that libzmq takes.
  int accept(int listener, sockaddr* address, socklen_t* length, int flags) {
    UniqueFd socket(real_accept(listener, address, length, flags));
    const int failure = errno;
    if (!socket.valid() && (failure == EMFILE || failure == ENFILE)) {
      turn_away(listener);
    } else if (!socket.valid()) {
      errno = failure == EAGAIN || failure == EINTR ? failure : ECONNABORTED;
      return -1;
    } else if (keep(listener, socket.get())) {
      return socket.release();
    } else {
      shm::empty_connection(socket.get());
    }
    socket.reset();
    errno = ECONNABORTED;
    return -1;
  }

  // False: the connection has sent what it may not, now or before: descriptors, or these bytes.
  bool take(int socket, std::span<const std::byte> bytes, bool with_descriptors) {
    const MutexLock lock(mutex_);
    const auto found = connections_.find(socket);
    if (found == connections_.end()) return true;
    if (found->second.meter.take(bytes) && !with_descriptors) return true;
    count(&GateCounts::broken_rules);
    return false;
  }

  // Before it is closed: what peers have sent must not make close() wait.
  void empty(int fd) {
    // Relaxed: set before libzmq has a listener, and what is not of it needs nothing here.
    if (!in_use_.load(std::memory_order_relaxed)) return;
    bool is_connection = false, is_listener = false;
    {
      const MutexLock lock(mutex_);
      is_connection = connections_.erase(fd) > 0;
      is_listener = listeners_.erase(fd) > 0;
    }
    if (is_connection) shm::empty_connection(fd);
    if (is_listener) shm::empty_listener(fd);
  }

 private:
  struct Connection {
    int listener = -1;
    ZmtpMeter meter;
    int64_t since_ns = 0;  // when its time began
    bool may_stay = false;
    bool over = false;   // its time was, at the last look
    bool ended = false;  // libzmq has not closed it yet
  };

  bool keep(int listener, int socket) {
    const MutexLock lock(mutex_);
    if (socket >= first_refused_) {
      count(&GateCounts::beyond_descriptors);
      return false;
    }
    const uint32_t limit = listeners_.at(listener);
    if (open_connections(listener) >= limit) {
      count(&GateCounts::beyond_connections);
      return false;
    }
    try {
      connections_[socket] = {.listener = listener, .meter = {}, .since_ns = monotonic_ns()};
    } catch (const std::bad_alloc&) {
      note_no_memory();
      return false;
    }
    wake();
    return true;
  }

  void count(uint64_t GateCounts::*what) ELIXIR_REQUIRES(mutex_) {
    if (counts_.all() == 0) wake();
    ++(counts_.*what);
  }

  void wake() const ELIXIR_REQUIRES(mutex_) {
    const uint64_t one = 1;
    if (eventfd_ < 0) return;
    [[maybe_unused]] const ssize_t wrote = ::write(eventfd_, &one, sizeof one);
  }

  uint32_t open_connections(int listener) const ELIXIR_REQUIRES(mutex_) {
    uint32_t count = 0;
    for (const auto& [socket, connection] : connections_) count += connection.listener == listener;
    return count;
  }

  // There is no descriptor left. What is received is closed, and who must rest does so, without the
  // mutex: elixird's event loop and every recv() and close() would wait for it, this one's too.
  void turn_away(int listener) {
    UniqueFd socket = accept_with_spare(listener);
    const bool taken =
        socket.valid();  // else nobody is there, or another thread has the descriptor
    if (taken) shm::empty_connection(socket.get());
    socket.reset();
    keep_spare();
    if (!taken) ::usleep(kRestMicroseconds);
  }

  void keep_spare() {
    const MutexLock lock(mutex_);
    if (!spare_.valid()) spare_ = spare_descriptor();
  }

  UniqueFd accept_with_spare(int listener) {
    const MutexLock lock(mutex_);
    count(&GateCounts::beyond_descriptors);
    if (spare_.valid()) real_close(spare_.release());
    return UniqueFd(real_accept(listener, nullptr, nullptr, SOCK_CLOEXEC));
  }

  std::atomic<bool> in_use_{false};  // there is or was a listener
  Mutex mutex_;
  std::map<int, uint32_t> listeners_ ELIXIR_GUARDED_BY(mutex_);  // and how many connections
  // By descriptor, until it is closed.
  std::unordered_map<int, Connection> connections_ ELIXIR_GUARDED_BY(mutex_);
  UniqueFd spare_ ELIXIR_GUARDED_BY(mutex_);
  int first_refused_ ELIXIR_GUARDED_BY(mutex_) = INT_MAX;
  GateCounts counts_ ELIXIR_GUARDED_BY(mutex_);
  int eventfd_ ELIXIR_GUARDED_BY(mutex_) = -1;
};

// Never destroyed: a thread of libzmq may be in it to the end.
Gate& gate() {
  static Gate* const one = new Gate;
  return *one;
}

}  // namespace

void gate_listener(int listener, uint32_t max_connections) {
  gate().add(listener, max_connections);
}
void forget_listener(int listener) { gate().remove(listener); }
void refuse_descriptors_from(int first_refused) { gate().refuse_from(first_refused); }
void note_brought(int socket, Brought what) { gate().note_brought(socket, what); }
bool end_silent_connections(int64_t now_ns) { return gate().end_silent(now_ns); }
GateCounts take_gate_counts() { return gate().take_counts(); }
void ring_gate_counts(int eventfd) { gate().ring(eventfd); }

}  // namespace elixir::daemon

// What libzmq calls. Nothing else of elixird calls recv(); all of it calls close().

extern "C" ELIXIR_PUBLIC int accept4(int listener, sockaddr* address, socklen_t* length,
                                     int flags) {
  using namespace elixir::daemon;
  return gate().guards(listener) ? gate().accept(listener, address, length, flags)
                                 : real_accept(listener, address, length, flags);
}

extern "C" ELIXIR_PUBLIC int accept(int listener, sockaddr* address, socklen_t* length) {
  return accept4(listener, address, length, 0);
}

// Where the kernel has no entry for a descriptor (memory, fs.epoll.max_user_watches), libzmq would
// end elixird, and all jobs with it. Its thread waits for one: meanwhile doorbells may be late.
extern "C" ELIXIR_PUBLIC int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  using namespace elixir::daemon;
  static auto* const function = of_libc<decltype(::epoll_ctl)>("epoll_ctl");
  for (int rests = 0;; ++rests) {
    const int result = function(epoll, what, fd, event);
    const bool lacks = result != 0 && (errno == ENOSPC || errno == ENOMEM);
    if (what != EPOLL_CTL_ADD || !lacks || rests == kMostRests) return result;
    if (rests == 0) {
      elixir::log_warn("epoll_exhausted", "cause=\"{}\" remedy='fs.epoll.max_user_watches, memory'",
                       std::strerror(errno));
    }
    ::usleep(kRestMicroseconds);
  }
}

// Descriptors that come with the bytes would be dropped within libc's recv(), which waits for their
// unsent bytes.
extern "C" ELIXIR_PUBLIC ssize_t recv(int socket, void* buffer, size_t bytes, int flags) {
  using namespace elixir;
  const std::span into(static_cast<std::byte*>(buffer), bytes);
  const shm::PeerBytes received = shm::receive_bytes(socket, into, flags, daemon::read_for_libzmq);
  // libzmq would end elixird. The bytes are there still, and it comes again.
  if (received.count < 0 && (errno == ENOMEM || errno == ENOBUFS)) errno = EAGAIN;
  if (received.count <= 0) return received.count;
  const auto read = into.first(static_cast<size_t>(received.count));
  if (daemon::gate().take(socket, read, !received.fds.empty())) return received.count;
  shm::empty_connection(socket);
  return 0;  // the peer has closed it
}

extern "C" ELIXIR_PUBLIC int close(int fd) {
  elixir::daemon::gate().empty(fd);
  return elixir::daemon::real_close(fd);
}
