#pragma once

// Connections to elixird's sockets by processes that are no trainers.

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "base/fd.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/matchers.h"

namespace elixir::testing {

inline FakeModel door_model(uint32_t ranks = 1) {
  return make_model(ComputeType::kFp32, ranks, 2, 4096);
}

inline std::unique_ptr<FakeJob> start_job(const DaemonProcess& daemon,
                                          const std::string& name = "job", uint32_t ranks = 1) {
  return must(
      FakeJob::start({.folder = daemon.folder(), .name = name, .model = door_model(ranks)}));
}

// Makes all steps from the first to this one.
inline void expect_steps(FakeJob& job, uint32_t last_step) {
  for (uint32_t step = 1; step <= last_step; ++step) EXPECT_TRUE(job.step(step).ok());
}

// Does not wait: if the backlog is full, the descriptor is invalid.
inline UniqueFd connect_to(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return UniqueFd();
  }
  return socket;
}

// Tries again until there is room in the backlog.
inline UniqueFd connected_to(const std::string& path, int type) {
  UniqueFd socket;
  EXPECT_TRUE(becomes_true([&] {
    socket = connect_to(path, type);
    return socket.valid();
  }));
  return socket;
}

// Whether the connection is closed or was rejected. On a connection that it keeps, elixird sends
// nothing and ZeroMQ sends a greeting.
inline bool is_closed(int socket) {
  std::string bytes(2048, '\0');
  for (;;) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
    if (got < 0) return false;
  }
}

inline size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

// A test of each socket, by its name.
class Sockets : public ::testing::TestWithParam<const char*> {
 protected:
  static bool is_attach() { return std::string(GetParam()) == "attach"; }
  static std::string path(const DaemonProcess& daemon) {
    return daemon.folder().path + "/" + GetParam() + ".sock";
  }
  static int type() { return is_attach() ? SOCK_SEQPACKET : SOCK_STREAM; }
};

}  // namespace elixir::testing
