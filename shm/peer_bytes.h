#pragma once

// Reads from a peer that may send descriptors (SCM_RIGHTS), wanted or not. A process that closes
// the last copy of a socket waits for its unsent bytes as long as its sender wishes (SO_LINGER),
// whatever O_NONBLOCK says. So does the kernel, within recv() or close(), for descriptors that
// nobody has taken. These functions take all descriptors, and remove that wish, as far as the
// process may have descriptors: the kernel drops those beyond its limit, and waits.

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
// `read`: the system's recvmsg(), or a replacement.
PeerBytes receive_bytes(int socket, std::span<std::byte> buffer, int flags,
                        ssize_t (*read)(int, msghdr*, int) = ::recvmsg);

// Stops the peer from sending on an AF_UNIX socket, and reads what it has sent: then close() does
// not wait.
void empty_connection(int socket);

// empty_connection() for a listener that does not block, and for all connections that wait there.
void empty_listener(int listener);

}  // namespace elixir::shm
