#pragma once

// Reading from a peer that may send descriptors (SCM_RIGHTS), wanted or not. Who closes the last
// copy of a socket waits for its unsent bytes as long as its sender wishes (SO_LINGER), whatever
// O_NONBLOCK says; so does the kernel, within recv() or close(), for descriptors that nobody has
// taken. Here all are taken, and have lost that wish, as far as the process may have descriptors:
// what does not fit below its limit the kernel drops, and waits.

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.h"

namespace elixir::shm {

struct PeerBytes {
  ssize_t count = -1;  // as recvmsg() returns it, with errno
  int flags = 0;       // as recvmsg() sets them
  std::vector<UniqueFd> fds;
  bool has_control_data = false;
  bool lacked_memory = false;  // for descriptors, which were closed
};
// `read`: the system's recvmsg(), or what stands for it.
PeerBytes receive_bytes(int socket, std::span<std::byte> buffer, int flags,
                        ssize_t (*read)(int, msghdr*, int) = ::recvmsg);

// Ends what the peer may send on an AF_UNIX socket and reads what it has sent: close() then waits
// for nobody.
void empty_connection(int socket);

// The same for a listener that does not block, and for all who wait to be accepted.
void empty_listener(int listener);

}  // namespace elixir::shm
