#include "shm/peer_bytes.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace elixir::shm {
namespace {

constexpr size_t kMostFdsAtOnce = 253;  // SCM_MAX_FD of Linux: more cannot be sent
constexpr size_t kReadBytes = 16 * 1024;

// Fails for what is no socket, which has no such wish.
void forget_linger(int fd) {
  const linger off{.l_onoff = 0, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof off);
}

// One for which there is no memory is closed.
void keep(UniqueFd fd, PeerBytes* received) {
  try {
    received->fds.push_back(std::move(fd));
  } catch (const std::bad_alloc&) {
    received->lacked_memory = true;
  }
}

bool is_stream(int socket) {
  int type = 0;
  socklen_t length = sizeof type;
  return ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

}  // namespace

PeerBytes receive_bytes(int socket, std::span<std::byte> buffer, int flags,
                        ssize_t (*read)(int, msghdr*, int)) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int) * kMostFdsAtOnce)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  PeerBytes received;
  received.count = read(socket, &message, flags | MSG_CMSG_CLOEXEC);
  if (received.count < 0) return received;
  received.flags = message.msg_flags;
  received.has_control_data = message.msg_controllen > 0;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&message); rights != nullptr;
       rights = CMSG_NXTHDR(&message, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(rights) + i * sizeof(int), sizeof fd);
      forget_linger(fd);
      keep(UniqueFd(fd), &received);
    }
  }
  return received;
}

void empty_connection(int socket) {
  ::shutdown(socket, SHUT_RD);
  // An empty packet has its sender's credentials, the end of a connection has none.
  const int on = is_stream(socket) ? 0 : 1;
  ::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  std::array<std::byte, kReadBytes> bytes;
  for (;;) {
    const PeerBytes received = receive_bytes(socket, bytes, MSG_DONTWAIT);
    const bool goes_on = received.count < 0 ? errno == EINTR || errno == ECONNRESET
                                            : received.count > 0 || received.has_control_data;
    if (!goes_on) return;
  }
}

void empty_listener(int listener) {
  ::shutdown(listener, SHUT_RD);
  for (;;) {
    const UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid() && errno != EINTR) return;
    if (socket.valid()) empty_connection(socket.get());
  }
}

}  // namespace elixir::shm
