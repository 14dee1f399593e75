// Who listens at a socket and does not answer: real listeners, each silent in its own way.

#include "ctl/unanswered.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "shm/attach_socket.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::ctl {
namespace {

class UnansweredTest : public ::testing::Test {
 protected:
  ~UnansweredTest() override {
    if (other_ < 0) return;
    ::kill(other_, SIGKILL);
    ::waitpid(other_, nullptr, 0);
  }

  UniqueFd listen() const { return must(shm::listen_on(socket_, SOCK_STREAM)); }
  // Another process listens, and stops; `traced`: in the hands of this one.
  void stop_another(bool traced) {
    other_ = ::fork();
    if (other_ == 0) {
      if (traced) ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      const Result<UniqueFd> listener = shm::listen_on(socket_, SOCK_STREAM);
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(other_, &state, WUNTRACED), other_);
    ASSERT_TRUE(WIFSTOPPED(state));
  }
  const TemporaryFolder folder_;
  const std::string socket_ = folder_.path("status.sock");
  const std::string own_pid_ = fmt::format("(pid {})", ::getpid());
  pid_t other_ = -1;
};

TEST_F(UnansweredTest, WhereNobodyListensOneIsToBeStarted) {
  const auto nobody = [&] {
    expect_refused(why_unanswered(socket_, 0).status(), Code::kUnavailable,
                   {socket_, "start one with elixir-run"});
  };
  nobody();
  listen().reset();  // what an elixird left that was killed
  ASSERT_EQ(::access(socket_.c_str(), F_OK), 0);
  nobody();
  ::unlink(socket_.c_str());
  folder_.write("status.sock", "no socket");
  nobody();
}

TEST_F(UnansweredTest, WhoIsStoppedIsToBeResumed) {
  stop_another(/*traced=*/false);
  expect_refused(why_unanswered(socket_, 2000).status(), Code::kTimedOut,
                 {fmt::format("(pid {}) is stopped: 'kill -CONT {}'", other_, other_)});
}

TEST_F(UnansweredTest, WhoStandsInADebuggerIsToBeResumedThere) {
  stop_another(/*traced=*/true);
  expect_refused(why_unanswered(socket_, 2000).status(), Code::kTimedOut,
                 {fmt::format("(pid {}) is stopped by a debugger", other_)});
}

TEST_F(UnansweredTest, WhoAcceptsAndIsSilentIsBusy) {
  const UniqueFd listener = listen();
  expect_refused(why_unanswered(socket_, 2000, /*look_ms=*/1).status(), Code::kTimedOut,
                 {own_pid_ + " has not answered for 2000 ms", "its log"});
}

// As libzmq does: its greeting comes whatever else elixird's threads do.
TEST_F(UnansweredTest, WhoGreetsAndSaysNoMoreIsBusy) {
  const UniqueFd listener = listen();
  std::thread greets([&] {
    UniqueFd taken;
    EXPECT_TRUE(test::eventually([&] {
      taken.reset(::accept(listener.get(), nullptr, nullptr));
      return taken.valid();
    }));
    EXPECT_EQ(::send(taken.get(), "\xff", 1, MSG_NOSIGNAL), 1);
    char byte = 0;
    EXPECT_EQ(::recv(taken.get(), &byte, 1, 0), 0);  // until it goes
  });
  expect_refused(why_unanswered(socket_, 2000, test::kPatienceMs).status(), Code::kTimedOut,
                 {own_pid_, "busy"});
  greets.join();
}

TEST_F(UnansweredTest, WhoClosesHasTooManyConnections) {
  const UniqueFd listener = listen();
  std::thread closes([&] {
    EXPECT_TRUE(test::eventually(
        [&] { return UniqueFd(::accept(listener.get(), nullptr, nullptr)).valid(); }));
  });
  expect_refused(why_unanswered(socket_, 2000, test::kPatienceMs).status(),
                 Code::kResourceExhausted,
                 {own_pid_ + " closes new connections", "connections_closed"});
  closes.join();
}

TEST_F(UnansweredTest, WhereManyWaitAlreadySomebodyListens) {
  const UniqueFd listener = listen();
  std::vector<UniqueFd> waiting;
  for (Result<UniqueFd> one = shm::connect_now(socket_, SOCK_STREAM); one.ok();
       one = shm::connect_now(socket_, SOCK_STREAM)) {
    waiting.push_back(std::move(*one));
  }
  expect_refused(why_unanswered(socket_, 2000).status(), Code::kTimedOut,
                 {"an elixird listens at " + socket_, "elixird.lock"});
}

}  // namespace
}  // namespace elixir::ctl
