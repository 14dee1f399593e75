#include "daemon/zmq_gate.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/no_descriptors.h"
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

const std::string kGreeting = [] {
  std::string bytes("\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL", 16);
  bytes.resize(64);
  return bytes;
}();

// A listener behind the gate, and who connects to it.
class ZmqGate : public ::testing::Test {
 protected:
  ~ZmqGate() override {
    if (listener_.valid()) forget_listener(listener_.get());
  }

  void listen(uint32_t most_connections = 8) {
    EXPECT_EQ(::bind(listener_.get(), where(), sizeof address_), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    gate_listener(listener_.get(), most_connections);
    (void)take_gate_counts();
  }
  UniqueFd connect() {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), where(), sizeof address_), 0);
    return socket;
  }
  UniqueFd accept() { return UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

  UniqueFd listener_{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};

 private:
  sockaddr* where() {
    address_.sun_family = AF_UNIX;
    folder_.path("socket").copy(address_.sun_path, sizeof address_.sun_path - 1);
    return reinterpret_cast<sockaddr*>(&address_);
  }

  const TemporaryFolder folder_;
  sockaddr_un address_{};
};

TEST_F(ZmqGate, WhoRestsForWantOfADescriptorHoldsNobodyUp) {
  listen();
  const NoDescriptors none;
  std::thread zmq([&] {
    is_zmq = true;
    EXPECT_FALSE(accept().valid());  // nobody is there
    EXPECT_EQ(errno, ECONNABORTED);
  });
  EXPECT_TRUE(test::eventually([] { return rests.load(); }));
  std::atomic<uint64_t> beyond{0};
  std::thread event_loop([&] { beyond = take_gate_counts().beyond_descriptors; });
  EXPECT_TRUE(test::eventually([&] { return beyond.load() == 1; }));
  rest_goes_on = false;
  zmq.join();
  event_loop.join();
}

TEST_F(ZmqGate, WhoSendsADescriptorIsReadAsGoneAndHoldsNobodyUp) {
  listen();
  const UniqueFd peer = connect(), taken = accept();
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
}

// Frames that say that more will follow are one message, which libzmq would keep until its end
// (zmtp_meter_test.cpp).
TEST_F(ZmqGate, WhoSendsAMessageWithoutAnEndIsReadAsGone) {
  listen();
  const UniqueFd peer = connect(), taken = accept();
  std::string bytes = kGreeting;
  while (bytes.size() < 16384) bytes += std::string("\x01\0", 2);
  ASSERT_EQ(::send(peer.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  size_t read_bytes = 0;
  char buffer[16];
  for (ssize_t got; (got = ::recv(taken.get(), buffer, sizeof buffer, 0)) > 0;) {
    read_bytes += static_cast<size_t>(got);
  }
  EXPECT_LT(read_bytes, 128u);
  EXPECT_EQ(take_gate_counts().broken_rules, 1u);
}

TEST_F(ZmqGate, WhatIsUnreadHoldsNobodyUpWhoCloses) {
  listen();
  const UniqueFd first = connect(), second = connect();
  UniqueFd taken = accept();  // the other one is not accepted
  ASSERT_TRUE(taken.valid());
  test::LingeringSocket sockets[2];
  ASSERT_TRUE(sockets[0].send_away(first.get(), "\xff"));
  ASSERT_TRUE(sockets[1].send_away(second.get(), "\xff"));
  EXPECT_TRUE(test::returns(sockets, [&] {
    listener_.reset();
    taken.reset();
  }));
}

// More are not kept, and closed at once.
TEST_F(ZmqGate, WhatOneTooManyHasSentHoldsNobodyUp) {
  listen(/*most_connections=*/0);
  const UniqueFd peer = connect();
  test::LingeringSocket socket;
  ASSERT_TRUE(socket.send_away(peer.get(), "\xff"));
  EXPECT_TRUE(test::returns(std::span(&socket, 1), [&] { EXPECT_FALSE(accept().valid()); }));
}

// It is accepted with the spare descriptor. Another one is free by then, for what it has sent.
TEST_F(ZmqGate, WhatSomebodyTurnedAwayHasSentHoldsNobodyUp) {
  listen();
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ring_gate_counts(bell.get());
  const UniqueFd peer = connect();
  test::LingeringSocket socket;
  ASSERT_TRUE(socket.send_away(peer.get(), "\xff"));
  {
    NoDescriptors none;
    at_write = [&] { none.free_one(); };  // elixird counts whom it turns away
    EXPECT_TRUE(test::returns(std::span(&socket, 1), [&] { EXPECT_FALSE(accept().valid()); }));
    EXPECT_EQ(at_write, nullptr) << "it was turned away";
  }
  EXPECT_EQ(take_gate_counts().beyond_descriptors, 1u);
  ring_gate_counts(-1);
}

// ---- who brings nothing ----

// Nothing, half a greeting, a greeting without a handshake, a handshake, a message of nobody, and
// more of it a byte at a time: the clock is the test's.
TEST_F(ZmqGate, WhoBringsNothingIsEndedWhateverElseItSends) {
  const std::string handshake = kGreeting + std::string("\x04\x06\x05READY", 8);
  const std::string message = handshake + std::string("\0\1x", 3);
  for (const std::string& sent :
       {std::string(), kGreeting.substr(0, 20), kGreeting, handshake, message}) {
    if (sent.empty()) listen();
    const UniqueFd peer = connect();
    const int64_t before_ns = monotonic_ns();
    const UniqueFd taken = accept();
    const int64_t after_ns = monotonic_ns();
    for (const char byte : sent) {
      char got = 0;
      ASSERT_EQ(::send(peer.get(), &byte, 1, 0), 1);
      ASSERT_EQ(::recv(taken.get(), &got, 1, 0), 1);
    }
    EXPECT_TRUE(end_silent_connections(before_ns + kSilentConnectionNs));
    EXPECT_TRUE(end_silent_connections(before_ns + kSilentConnectionNs)) << "it has all its time";
    EXPECT_TRUE(end_silent_connections(after_ns + kSilentConnectionNs + 1)) << "it is warned";
    EXPECT_EQ(take_gate_counts().silent, 0u);
    EXPECT_FALSE(end_silent_connections(after_ns + kSilentConnectionNs + 1));
    char got = 0;
    EXPECT_EQ(::recv(taken.get(), &got, 1, MSG_DONTWAIT), 0) << "as if the peer had closed it";
    EXPECT_EQ(take_gate_counts().silent, 1u);
    EXPECT_FALSE(end_silent_connections(after_ns + 2 * kSilentConnectionNs)) << "once";
    EXPECT_EQ(take_gate_counts().silent, 0u);
  }
}

TEST_F(ZmqGate, WhoSaysHelloStaysAndWhoAsksHasItsTimeAgain) {
  listen();
  const UniqueFd rank = connect();
  const UniqueFd rank_taken = accept();
  const UniqueFd asker = connect();
  const UniqueFd asker_taken = accept();
  const auto look_twice = [](int64_t now_ns) {
    (void)end_silent_connections(now_ns);
    return end_silent_connections(now_ns);
  };
  note_brought(rank_taken.get(), Brought::kHello);
  const int64_t asked_ns = monotonic_ns();
  note_brought(asker_taken.get(), Brought::kRequest);
  EXPECT_TRUE(look_twice(asked_ns + kSilentConnectionNs));
  EXPECT_EQ(take_gate_counts().silent, 0u);
  EXPECT_FALSE(look_twice(monotonic_ns() + kSilentConnectionNs + 1));
  EXPECT_EQ(take_gate_counts().silent, 1u);
  EXPECT_FALSE(look_twice(monotonic_ns() + 100 * kSilentConnectionNs));
  EXPECT_EQ(take_gate_counts().silent, 0u) << "of the rank";
}

TEST_F(ZmqGate, AClosedConnectionMakesRoomForTheNext) {
  listen(/*most_connections=*/1);
  for (int round = 0; round < 3; ++round) {
    const UniqueFd peer = connect(), other = connect(), taken = accept();
    EXPECT_TRUE(taken.valid());
    EXPECT_FALSE(accept().valid());
  }
}

}  // namespace
}  // namespace elixir::daemon
