#pragma once

// The attach channel: AF_UNIX SEQPACKET, one message per packet, with descriptors and the peer's
// credentials. End-of-file means that the peer died, unless a Detach came first.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "shm/message.h"
#include "shm/shape.h"

namespace elixir::shm {

// The most descriptors of one packet. RanksReady brings up to three per rank of a node. With
// swing chunks and the host exchange it brings four, for at most kMaxSwingRanks ranks.
inline constexpr uint32_t kMaxFds = 3 * kMaxLocalRanks;

struct PeerCredentials {
  pid_t pid;
  uid_t uid;
};

struct Packet {
  std::vector<std::byte> bytes;  // empty: end of file
  std::vector<UniqueFd> fds;

  bool end_of_file() const { return bytes.empty(); }
};

// Binds `path` with mode 0600. Removes a stale file, so take the runtime folder's lock first.
Result<UniqueFd> listen_attach(const std::string& path);
// listen_attach() for another type of AF_UNIX socket (SOCK_STREAM).
Result<UniqueFd> listen_on(const std::string& path, int type);

// kUnavailable: no process listens. kTimedOut: the backlog was full for `timeout_ms`, because the
// listener accepts no connection.
Result<UniqueFd> connect_attach(const std::string& path, int timeout_ms = 10000);
// Never waits. On failure errno has the reason: EAGAIN if the listener's backlog is full. `type`:
// as for listen_on().
Result<UniqueFd> connect_now(const std::string& path, int type);
// True even if the listener accepts no connection. Does not wait.
bool somebody_listens(const std::string& path);

Result<UniqueFd> accept_attach(int listener);
Result<PeerCredentials> peer_credentials(int socket);
// A pidfd of the process that connected. It becomes readable when that process ends, even if others
// hold its end of the socket. (End-of-file would wait for its forked children, too.) Invalid if
// there is none: the process is in another pid namespace or gone, or the kernel is older than 5.3.
UniqueFd peer_process(int socket);

// Sends one packet with up to kMaxFds descriptors. Never raises SIGPIPE, and waits at most
// `timeout_ms` for room.
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                   int timeout_ms);

// kTimedOut: nothing came within `timeout_ms` (-1: wait forever; 0: only look). kProtocol: the
// packet has too many bytes or descriptors.
Result<Packet> receive_packet(int socket, int timeout_ms);

template <typename Message>
Status send_message(int socket, Message message, std::span<const int> fds = {},
                    int timeout_ms = 1000) {
  seal_message(message);
  return send_packet(socket, std::as_bytes(std::span(&message, 1)), fds, timeout_ms);
}

}  // namespace elixir::shm
