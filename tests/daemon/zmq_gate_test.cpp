#include "daemon/zmq_gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace {

// Of the thread that stands for libzmq's: it rests, and stays at it while `rest_goes_on`.
thread_local bool is_zmq = false;
std::atomic<bool> rests{false}, rest_goes_on{true};

}  // namespace

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
  EXPECT_TRUE(test::eventually([&] { return beyond.load() == 1; }, 10));
  rest_goes_on = false;
  zmq.join();
  event_loop.join();
  forget_listener(listener.get());
}

}  // namespace
}  // namespace elixir::daemon
