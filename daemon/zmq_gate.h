#pragma once

// libzmq takes what peers of the same user send it as if they meant well, and the system's answers
// as if they were always good: it ends the process when accept() finds no descriptor
// (ipc_listener.cpp, an assertion) or epoll_ctl() no memory, and queues a message's frames without
// limit until the last one has come; where they send descriptors, its recv() and close() wait for
// what is unsent on them (shm/peer_bytes.h). It has no option against any of that. So elixird has
// accept4(), accept(), recv(), close() and epoll_ctl() of its own, which libzmq's shared object
// resolves to before those of libc. For listeners named here the first four count; for all others
// they do what libc's do. The last one waits for memory.

#include <cstdint>

namespace elixir::daemon {

// From here on a connection to `listener` is closed at once when `max_connections` are open, or
// when the process is near its limit of descriptors; and one whose peer sends a descriptor, or
// breaks the rules of daemon/zmtp_meter.h, reads as if the peer had closed it. REQUIRES: before
// libzmq has the listener, which does not block.
void gate_listener(int listener, uint32_t max_connections);

// Once libzmq has closed it.
void forget_listener(int listener);

// A connection whose descriptor would be `first_refused` or more is closed: the system gives the
// lowest that is free, so at least so many are open. Any thread.
void refuse_descriptors_from(int first_refused);

// How long a connection may be open before it has brought what connections to its socket are for,
// a rank's Hello or a request for the status, however much or little else it sends. A peer of
// ZeroMQ's connects again by itself.
inline constexpr int64_t kSilentConnectionNs = 5'000'000'000;

// What a connection that libzmq has from a guarded listener has brought. Any thread.
enum class Brought {
  kRequest,  // its time begins again
  kHello,    // it may stay
};
void note_brought(int socket, Brought what);

// Ends the connections whose time was over at the call before, too: libzmq reads that the peer has
// closed them, and closes them. (What they brought may not have been read yet, after elixird stood
// still.) `now_ns` is of monotonic_ns(). True: there are others to look at again. Any thread.
bool end_silent_connections(int64_t now_ns);

// Connections closed by the rules above since the last call.
struct GateCounts {
  uint64_t beyond_connections = 0;  // max_connections
  uint64_t beyond_descriptors = 0;
  uint64_t broken_rules = 0;
  uint64_t silent = 0;

  uint64_t all() const { return beyond_connections + beyond_descriptors + broken_rules + silent; }
};
GateCounts take_gate_counts();

// From here on one is added to `eventfd` when there is something to take, and when a connection's
// time begins. REQUIRES: it is open as long as libzmq has a listener.
void ring_gate_counts(int eventfd);

}  // namespace elixir::daemon
