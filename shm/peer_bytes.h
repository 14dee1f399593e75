#pragma once

// Reads from a peer that may send descriptors (SCM_RIGHTS), wanted or not. Such a descriptor can
// block its receiver: closing the last copy of a socket waits for its unsent bytes. The sender
// decides how long (SO_LINGER), and O_NONBLOCK does not change that. The kernel waits in the same
// way, within recv() or close(), when it drops a descriptor that nobody has taken. So these
// functions take all descriptors and switch SO_LINGER off. This works up to the process's limit of
// descriptors: the kernel drops the ones beyond it, and waits.

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.h"

namespace elixir::shm {

struct PeerBytes {
  ssize_t count = -1;  // recvmsg()'s return value; errno is kept
  int flags = 0;       // set by recvmsg()
  std::vector<UniqueFd> fds;
  bool has_control_data = false;
  bool lacked_memory = false;  // memory for the descriptors was missing, so they were closed
};
// `read`: the system's recvmsg(), or a replacement.
PeerBytes receive_bytes(int socket, std::span<std::byte> buffer, int flags,
                        ssize_t (*read)(int, msghdr*, int) = ::recvmsg);

// Stops the peer from sending on an AF_UNIX socket and reads all that it has sent, so that close()
// does not wait.
void empty_connection(int socket);

// Shuts down a non-blocking listener, and calls empty_connection() for each connection that waits
// there.
void empty_listener(int listener);

}  // namespace elixir::shm
