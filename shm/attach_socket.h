#pragma once

// The attach channel: AF_UNIX SEQPACKET, one message a packet, with descriptors and the peer's
// credentials. End-of-file is the peer's death (or its Detach, if that came first).

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

// The most descriptors of one packet: params, state and peer of every rank of a node.
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

// Binds `path` (removing a stale file: take the runtime folder's lock first), mode 0600.
Result<UniqueFd> listen_attach(const std::string& path);
// listen_attach() for another type of AF_UNIX socket (SOCK_STREAM).
Result<UniqueFd> listen_on(const std::string& path, int type);

// kUnavailable if nobody listens; kTimedOut if the listener accepts nobody, so that the backlog has
// been full for `timeout_ms`.
Result<UniqueFd> connect_attach(const std::string& path, int timeout_ms = 10000);
// Never waits. If it fails, errno says why: EAGAIN if the listener's backlog is full. `type`: as
// for listen_on().
Result<UniqueFd> connect_now(const std::string& path, int type);
// True even if the listener accepts nobody. Does not wait.
bool somebody_listens(const std::string& path);

Result<UniqueFd> accept_attach(int listener);
Result<PeerCredentials> peer_credentials(int socket);
// A pidfd of the process that connected. It is readable once that has ended, even if others hold
// its end of the socket. (End-of-file waits for its forked children, too.) Invalid if it cannot be
// had: the process is of another pid namespace, or gone, or the kernel is older than 5.3.
UniqueFd peer_process(int socket);

// Sends one packet with up to kMaxFds descriptors. Never SIGPIPE; never waits longer than
// `timeout_ms` for room.
Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                   int timeout_ms);

// kTimedOut when nothing came within `timeout_ms` (-1: wait for ever; 0: only look). A packet that
// does not fit (bytes or descriptors) is kProtocol.
Result<Packet> receive_packet(int socket, int timeout_ms);

template <typename Message>
Status send_message(int socket, Message message, std::span<const int> fds = {},
                    int timeout_ms = 1000) {
  seal_message(message);
  return send_packet(socket, std::as_bytes(std::span(&message, 1)), fds, timeout_ms);
}

}  // namespace elixir::shm
