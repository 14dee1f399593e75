#pragma once

// libzmq trusts peers of the same user, and expects that the system's calls succeed. It ends the
// process when accept() finds no descriptor (ipc_listener.cpp, an assertion) or epoll_ctl() finds
// no memory. It queues a message's frames without limit until the last one has come. If peers send
// descriptors, its recv() and close() wait for unsent bytes on them (shm/peer_bytes.h). It has no
// option against any of that.
//
// So elixird has its own accept4(), accept(), recv(), close() and epoll_ctl(), and libzmq's shared
// object finds these before those of libc. The first four add rules for the listeners named here,
// and do what libc's do for all others. epoll_ctl() waits for memory, but not forever.

#include <cstdint>

namespace elixir::daemon {

// From now on a connection to `listener` is closed at once if `max_connections` are open, or if the
// process is near its limit of descriptors. A connection whose peer sends a descriptor, or breaks
// the rules of daemon/zmtp_meter.h, reads as if the peer had closed it. REQUIRES: libzmq does not
// have the listener yet, and the listener does not block.
void gate_listener(int listener, uint32_t max_connections);

// Call it once libzmq has closed the listener.
void forget_listener(int listener);

// Closes connections whose descriptor would be `first_refused` or more. The system gives the lowest
// free one, so at least as many are open then. Any thread.
void refuse_descriptors_from(int first_refused);

// How long a connection may be open without the message that its socket is for: a rank's Hello, or
// a request for the status. Other bytes do not count. A ZeroMQ peer connects again by itself.
inline constexpr int64_t kSilentConnectionNs = 5'000'000'000;

// The message that a connection from a guarded listener has brought. Any thread.
enum class Brought {
  kRequest,  // its time begins again
  kHello,    // it may stay
};
void note_brought(int socket, Brought what);

// Ends connections whose time was already over at the previous call: libzmq reads that the peer has
// closed them, and closes them. (After a pause, elixird may not have read their messages yet.)
// `now_ns` comes from monotonic_ns(). True: there are others to look at again. Any thread.
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

// From now on one is added to `eventfd` when there are counts to take, and when a connection's time
// begins. REQUIRES: `eventfd` is open as long as libzmq has a listener.
void ring_gate_counts(int eventfd);

}  // namespace elixir::daemon
