#include "daemon/zmq_gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace {

// Of the thread that stands for libzmq's: it rests, and stays at it while `rest_goes_on`.
thread_local bool is_zmq = false;
std::atomic<bool> rests{false}, rest_goes_on{true};

std::function<void()> at_write;  // called once

}  // namespace

extern "C" ssize_t __real_write(int fd, const void* bytes, size_t count);
extern "C" ssize_t __wrap_write(int fd, const void* bytes, size_t count) {
  if (at_write) std::exchange(at_write, nullptr)();
  return __real_write(fd, bytes, count);
}

extern "C" int __real_usleep(useconds_t microseconds);
extern "C" int __wrap_usleep(useconds_t microseconds) {
  if (is_zmq) rests = true;
  do {
    __real_usleep(microseconds);
  } while (is_zmq && rest_goes_on.load());
  return 0;
}

namespace elixir::daemon {
namespace {

UniqueFd listen_at(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(socket.get(), 8), 0);
  return socket;
}

// As long as it lives this process has no descriptor left.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0;
         fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
      taken_.emplace_back(fd);
    }
    EXPECT_EQ(errno, EMFILE);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;

  void free_one() {
    ::syscall(SYS_close, taken_.back().release());  // behind the gate's back
    taken_.pop_back();
  }

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

TEST(ZmqGate, WhoRestsForWantOfADescriptorHoldsNobodyUp) {
  const TemporaryFolder folder;
  const UniqueFd listener = listen_at(folder.path() + "/socket");
  gate_listener(listener.get(), 8);
  const NoDescriptors none;
  std::thread zmq([&] {
    is_zmq = true;
    EXPECT_EQ(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), -1);  // nobody is there
    EXPECT_EQ(errno, ECONNABORTED);
  });
  EXPECT_TRUE(test::eventually([] { return rests.load(); }));
  std::atomic<uint64_t> beyond{0};
  std::thread event_loop([&] { beyond = take_gate_counts().beyond_descriptors; });
  EXPECT_TRUE(test::eventually([&] { return beyond.load() == 1; }));
  rest_goes_on = false;
  zmq.join();
  event_loop.join();
  forget_listener(listener.get());
}

UniqueFd connect_to(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

TEST(ZmqGate, WhoSendsADescriptorIsReadAsGoneAndHoldsNobodyUp) {
  const TemporaryFolder folder;
  const UniqueFd listener = listen_at(folder.path() + "/socket");
  gate_listener(listener.get(), 8);
  (void)take_gate_counts();
  const UniqueFd peer = connect_to(folder.path() + "/socket");
  const UniqueFd taken(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(taken.valid());
  test::LingeringSocket socket;
  ASSERT_TRUE(socket.send_away(peer.get(), "\xff"));
  ssize_t got = -1;
  EXPECT_TRUE(test::returns(std::span(&socket, 1), [&] {
    char byte;
    got = ::recv(taken.get(), &byte, 1, 0);
  }));
  EXPECT_EQ(got, 0);
  EXPECT_EQ(take_gate_counts().broken_rules, 1u);
  forget_listener(listener.get());
}

// Whether it is accepted or not.
TEST(ZmqGate, WhatIsUnreadHoldsNobodyUpWhoCloses) {
  for (const bool accepted : {true, false}) {
    const TemporaryFolder folder;
    UniqueFd listener = listen_at(folder.path() + "/socket");
    gate_listener(listener.get(), 8);
    const UniqueFd peer = connect_to(folder.path() + "/socket");
    UniqueFd taken;
    if (accepted) taken.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(taken.valid(), accepted);
    test::LingeringSocket socket;
    ASSERT_TRUE(socket.send_away(peer.get(), "\xff"));
    EXPECT_TRUE(test::returns(std::span(&socket, 1), [&] {
      listener.reset();
      taken.reset();
    }));
  }
}

// More are not kept, and closed at once.
TEST(ZmqGate, WhatOneTooManyHasSentHoldsNobodyUp) {
  const TemporaryFolder folder;
  const UniqueFd listener = listen_at(folder.path() + "/socket");
  gate_listener(listener.get(), 0);
  const UniqueFd peer = connect_to(folder.path() + "/socket");
  test::LingeringSocket socket;
  ASSERT_TRUE(socket.send_away(peer.get(), "\xff"));
  EXPECT_TRUE(test::returns(std::span(&socket, 1), [&] {
    EXPECT_EQ(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), -1);
  }));
  forget_listener(listener.get());
}

// It is accepted with the spare descriptor. Another one is free by then, for what it has sent.
TEST(ZmqGate, WhatSomebodyTurnedAwayHasSentHoldsNobodyUp) {
  const TemporaryFolder folder;
  const UniqueFd listener = listen_at(folder.path() + "/socket");
  gate_listener(listener.get(), 8);
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ring_gate_counts(bell.get());
  (void)take_gate_counts();
  const UniqueFd peer = connect_to(folder.path() + "/socket");
  test::LingeringSocket socket;
  ASSERT_TRUE(socket.send_away(peer.get(), "\xff"));
  {
    NoDescriptors none;
    at_write = [&] { none.free_one(); };  // elixird counts whom it turns away
    EXPECT_TRUE(test::returns(std::span(&socket, 1), [&] {
      EXPECT_EQ(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), -1);
    }));
    EXPECT_EQ(at_write, nullptr) << "it was turned away";
  }
  EXPECT_EQ(take_gate_counts().beyond_descriptors, 1u);
  ring_gate_counts(-1);
  forget_listener(listener.get());
}

TEST(ZmqGate, AClosedConnectionMakesRoomForTheNext) {
  const TemporaryFolder folder;
  const UniqueFd listener = listen_at(folder.path() + "/socket");
  gate_listener(listener.get(), 1);
  for (int round = 0; round < 3; ++round) {
    const UniqueFd peer = connect_to(folder.path() + "/socket");
    const UniqueFd other = connect_to(folder.path() + "/socket");
    const UniqueFd taken(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(taken.valid());
    EXPECT_EQ(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), -1);
  }
  forget_listener(listener.get());
}

}  // namespace
}  // namespace elixir::daemon
