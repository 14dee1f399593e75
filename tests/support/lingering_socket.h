#pragma once

// A TCP connection with unsent bytes whose last close() waits for them for an hour (SO_LINGER). A
// peer can send such a descriptor, so that the receiver's close() waits.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "base/fd.h"
#include "tests/support/patience.h"

namespace elixir::test {

class LingeringSocket {
 public:
  LingeringSocket() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), where, length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), where, &length), 0);
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), where, length), 0);
    reader_.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string bytes(1 << 16, 'x');
    while (::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    const linger hour{.l_onoff = 1, .l_linger = 3600};
    EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof hour), 0);
  }
  // Ends every wait: nobody is left to read.
  ~LingeringSocket() {
    release();
    fd_.reset();
  }
  LingeringSocket(const LingeringSocket&) = delete;

  int fd() const { return fd_.get(); }
  void release() { reader_.reset(); }

  // Sends the descriptor with `bytes` and closes this process's copy. This close does not wait as
  // long as the receiver has not read. Returns whether the descriptor was sent.
  bool send_away(int socket, const std::string& bytes) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = fd_.get();
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent == std::ssize(bytes)) fd_.reset();
    return !fd_.valid();
  }

 private:
  UniqueFd fd_, reader_;
};

// Calls `close` in a thread. Returns whether it ends although the sockets' bytes are never read.
inline bool returns(std::span<LingeringSocket> sockets, const std::function<void()>& close) {
  std::atomic<bool> returned{false};
  std::thread closing([&] {
    close();
    returned = true;
  });
  const bool in_time = eventually([&] { return returned.load(); });
  for (LingeringSocket& socket : sockets) socket.release();
  closing.join();
  return in_time;
}

inline bool lingers(int socket) {
  linger wish{};
  socklen_t length = sizeof wish;
  EXPECT_EQ(::getsockopt(socket, SOL_SOCKET, SO_LINGER, &wish, &length), 0);
  return wish.l_onoff != 0;
}

}  // namespace elixir::test
