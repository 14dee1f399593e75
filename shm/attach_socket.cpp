#include "shm/attach_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "shm/peer_bytes.h"
#include "shm/shape.h"

namespace elixir::shm {
namespace {

constexpr int kBacklog = 128;
constexpr useconds_t kFullBacklogMicroseconds = 5000;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return error(Code::kInvalidArgument,
                 "the socket path '{}' has {} bytes, the system allows {}: set ELIXIR_RUNTIME_DIR "
                 "to a shorter folder",
                 path, path.size(), sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Status wait_for(int socket, short events, int timeout_ms) {
  pollfd entry{socket, events, 0};
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) return errno_status(Code::kInternal, "poll");
  if (ready == 0) return error(Code::kTimedOut, "no answer within {} ms", timeout_ms);
  return Status();
}

}  // namespace

Result<UniqueFd> listen_on(const std::string& path, int type) {
  const Result<sockaddr_un> address = address_of(path);
  if (!address.ok()) return address.status();
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno_status(Code::kInternal, "socket");
  ::unlink(path.c_str());
  // The mode is set on the descriptor before bind creates the file, so it is never wider.
  ::fchmod(socket.get(), 0600);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return errno_status(Code::kUnavailable, "cannot bind " + path);
  }
  ::chmod(path.c_str(), 0600);
  if (::listen(socket.get(), kBacklog) != 0) return errno_status(Code::kInternal, "listen");
  return socket;
}

Result<UniqueFd> listen_attach(const std::string& path) { return listen_on(path, SOCK_SEQPACKET); }

Result<UniqueFd> connect_now(const std::string& path, int type) {
  errno = 0;
  const Result<sockaddr_un> address = address_of(path);
  if (!address.ok()) return address.status();
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno_status(Code::kInternal, "socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    const int failure = errno;
    Status status = errno_status(Code::kUnavailable, "no elixird answers at " + path);
    socket.reset();
    errno = failure;
    return status;
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return errno_status(Code::kInternal, "fcntl");
  }
  return socket;
}

bool somebody_listens(const std::string& path) {
  return connect_now(path, SOCK_SEQPACKET).ok() || errno == EAGAIN;
}

Result<UniqueFd> connect_attach(const std::string& path, int timeout_ms) {
  for (const int64_t start_ns = monotonic_ns();;) {
    Result<UniqueFd> socket = connect_now(path, SOCK_SEQPACKET);
    if (socket.ok() || errno != EAGAIN) return socket;
    if (seconds_since(start_ns) * 1000 > timeout_ms) {
      return error(
          Code::kTimedOut,
          "elixird does not answer at {}: it has not accepted waiting connections for {} ms; if "
          "this continues, end it (elixird.lock beside that socket has its pid) and start again",
          path, timeout_ms);
    }
    ::usleep(kFullBacklogMicroseconds);
  }
}

Result<UniqueFd> accept_attach(int listener) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return errno_status(Code::kInternal, "accept");
  return socket;
}

Result<PeerCredentials> peer_credentials(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return errno_status(Code::kInternal, "SO_PEERCRED");
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

UniqueFd peer_process(int socket) {
#ifndef SO_PEERPIDFD
  constexpr int SO_PEERPIDFD = 77;
#endif
  int fd = -1;
  socklen_t length = sizeof fd;
  // Of that very process, since 6.5; by its number below, which could be another's by now.
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) return UniqueFd(fd);
  const Result<PeerCredentials> peer = peer_credentials(socket);
  if (!peer.ok() || peer->pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer->pid, 0)));
}

Status send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                   int timeout_ms) {
  ELIXIR_CHECK(fds.size() <= kMaxFds, "{} descriptors in one packet", fds.size());
  ELIXIR_CHECK(!bytes.empty(), "an empty packet, which is read as end-of-file");
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(bytes.size())) return Status();
    if (sent >= 0) return error(Code::kInternal, "a packet was cut to {} bytes", sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ELIXIR_RETURN_IF_ERROR(wait_for(socket, POLLOUT, timeout_ms));
    } else if (errno == ETOOMANYREFS) {
      return error(Code::kResourceExhausted,
                   "this user has too many descriptors in transit between processes; the limit is "
                   "that of open files of one process (ulimit -n)");
    } else if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      return errno_status(Code::kUnavailable, "the other side of the attach socket is gone");
    } else if (errno != EINTR) {
      return errno_status(Code::kInternal, "sendmsg on the attach socket");
    }
  }
}

Result<Packet> receive_packet(int socket, int timeout_ms) {
  ELIXIR_RETURN_IF_ERROR(wait_for(socket, POLLIN, timeout_ms));
  Packet packet;
  packet.bytes.resize(kMaxMessageBytes);
  PeerBytes received;
  do {
    received = receive_bytes(socket, packet.bytes, MSG_DONTWAIT);
  } while (received.count < 0 && errno == EINTR);
  if (received.count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return error(Code::kTimedOut, "no packet");
  }
  if (received.count < 0 && errno != ECONNRESET) return errno_status(Code::kInternal, "recvmsg");
  packet.bytes.resize(received.count < 0 ? 0 : static_cast<size_t>(received.count));
  packet.fds = std::move(received.fds);
  if (received.lacked_memory) return no_memory_left();
  if ((received.flags & MSG_CTRUNC) != 0) {
    return error(Code::kResourceExhausted,
                 "a packet's descriptors did not all fit below this process's limit: raise it "
                 "(ulimit -n)");
  }
  if ((received.flags & MSG_TRUNC) != 0 || packet.fds.size() > kMaxFds) {
    return error(Code::kProtocol, "a packet larger than {} bytes or {} descriptors",
                 kMaxMessageBytes, kMaxFds);
  }
  return packet;
}

}  // namespace elixir::shm
