#include "shm/find_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "shm/attach_socket.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::shm {
namespace {

class FindDaemonTest : public ::testing::Test {
 protected:
  FindDaemonTest() {
    ::setenv("ELIXIRD", STANDIN_ELIXIRD, 1);
    ::unsetenv("STANDIN_FAIL");
    ::unsetenv("STANDIN_SILENT");
    folder_.path = temporary_.path();
  }
  ~FindDaemonTest() override {
    for (pid_t pid : started()) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
  }
  std::vector<pid_t> started() const {
    std::ifstream file(folder_.path + "/standin.pids");
    std::vector<pid_t> pids;
    for (std::string line; std::getline(file, line);) pids.push_back(std::stoi(line));
    return pids;
  }

  TemporaryFolder temporary_;
  RuntimeFolder folder_;
};

TEST_F(FindDaemonTest, StartsOneAndThenFindsIt) {
  EXPECT_FALSE(daemon_listens(folder_));
  const auto first =
      must(find_or_start_daemon({.own = folder_}, {.extra_arguments = {"--workers", "1"}}));
  EXPECT_GT(first.pid, 0);
  EXPECT_TRUE(daemon_listens(folder_));
  const auto second = must(find_or_start_daemon({.own = folder_}, {}));
  EXPECT_EQ(second.pid, -1);
  EXPECT_EQ(started(), std::vector<pid_t>{first.pid});
}

TEST_F(FindDaemonTest, ADaemonThatDiedIsReplacedThoughItsSocketIsLeft) {
  const auto first = must(find_or_start_daemon({.own = folder_}, {}));
  ::kill(first.pid, SIGKILL);
  ::waitpid(first.pid, nullptr, 0);
  ASSERT_EQ(::access(folder_.attach_socket().c_str(), F_OK), 0);
  const auto second = must(find_or_start_daemon({.own = folder_}, {}));
  EXPECT_GT(second.pid, 0);
  EXPECT_NE(second.pid, first.pid);
}

TEST_F(FindDaemonTest, OfManyAtOnceOneStartsIt) {
  constexpr int kRanks = 8;
  std::vector<pid_t> children;
  for (int i = 0; i < kRanks; ++i) {
    children.push_back(::fork());
    if (children.back() == 0) {
      const auto daemon = find_or_start_daemon({.own = folder_}, {});
      ::_exit(!daemon.ok() ? 2 : daemon->pid > 0 ? 1 : 0);
    }
  }
  int starters = 0;
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_NE(WEXITSTATUS(status), 2);
    starters += WEXITSTATUS(status);
  }
  EXPECT_EQ(starters, 1);
  EXPECT_EQ(started().size(), 1u);
}

// Another one could not have the folder.
TEST_F(FindDaemonTest, OneThatAcceptsNobodyIsFoundAndNoneIsStartedBesideIt) {
  const UniqueFd listener = must(listen_attach(folder_.attach_socket()));
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  std::vector<UniqueFd> waiting;
  for (Result<UniqueFd> socket = connect_attach(folder_.attach_socket(), 0); socket.ok();
       socket = connect_attach(folder_.attach_socket(), 0)) {
    waiting.push_back(std::move(*socket));
  }
  const auto daemon = must(find_or_start_daemon({.own = folder_}, {}));
  EXPECT_EQ(daemon.pid, -1);
  EXPECT_TRUE(started().empty());
}

// Whoever starts an elixird may have been stopped meanwhile.
TEST_F(FindDaemonTest, WhoHoldsTheStartLockIsNotAwaitedForEver) {
  const UniqueFd lock(::open(folder_.start_lock_file().c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  DaemonStart start;
  start.timeout_ms = 50;
  const Status late = find_or_start_daemon({.own = folder_}, start).status();
  expect_refused(late, Code::kTimedOut, {folder_.start_lock_file()});

  int asked = 0;
  start.timeout_ms = 3'600'000;
  start.interrupted = [&] { return ++asked == 3; };
  EXPECT_EQ(find_or_start_daemon({.own = folder_}, start).status().code(), Code::kUnavailable);
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(started().empty());
}

TEST_F(FindDaemonTest, OneThatNeverListensIsEndedWhenTheWaitIsInterrupted) {
  ::setenv("STANDIN_SILENT", "1", 1);
  DaemonStart start;
  start.timeout_ms = 3'600'000;
  start.interrupted = [] { return true; };
  EXPECT_EQ(find_or_start_daemon({.own = folder_}, start).status().code(), Code::kUnavailable);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "it is left";
}

// Of one user, whatever their control groups: an elixird that a launch has started is its own.
class LaunchesTest : public FindDaemonTest {
 protected:
  LaunchesTest() {
    ::unsetenv("ELIXIR_RUNTIME_DIR");
    ::setenv("XDG_RUNTIME_DIR", temporary_.path().c_str(), 1);
    ::mkdir(service_.path.c_str(), 0700);
  }
  ~LaunchesTest() override {
    for (const pid_t pid : daemons_) ::kill(pid, SIGKILL);
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  DaemonPlaces places(const std::string& launch) const {
    return must(daemon_places("", launch, temporary_.path("run")));
  }
  FoundDaemon find(const std::string& launch) {
    FoundDaemon daemon = must(find_or_start_daemon(places(launch), {}));
    if (daemon.pid > 0) daemons_.push_back(daemon.pid);
    return daemon;
  }

  const RuntimeFolder service_{temporary_.path("elixir")};
  std::vector<pid_t> daemons_;
};

TEST_F(LaunchesTest, EachStartsItsOwnAndFindsItAgain) {
  const FoundDaemon first = find("run-1"), second = find("run-2");
  EXPECT_GT(first.pid, 0);
  EXPECT_GT(second.pid, 0);
  EXPECT_NE(first.folder.path, second.folder.path);
  const FoundDaemon again = find("run-1");
  EXPECT_EQ(again.pid, -1);
  EXPECT_EQ(again.folder.path, first.folder.path);
  EXPECT_EQ(daemon_folder(places("run-2")).path, second.folder.path);
  std::ifstream file(first.folder.path + "/standin.pids");
  const std::string said(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(said, HasSubstr("--launch run-1"));
}

TEST_F(LaunchesTest, AServiceIsShared) {
  const UniqueFd listener = must(listen_attach(service_.attach_socket()));
  for (const char* launch : {"run-1", "run-2"}) {
    const FoundDaemon daemon = find(launch);
    EXPECT_EQ(daemon.pid, -1);
    EXPECT_EQ(daemon.folder.path, service_.path);
    EXPECT_EQ(daemon_folder(places(launch)).path, service_.path);
    EXPECT_NE(::access(places(launch).own.path.c_str(), F_OK), 0);
  }
}

// Ranks of one launch must meet, also where a service comes between the first and the second.
TEST_F(LaunchesTest, AServiceThatComesLaterSeparatesNoRanks) {
  const FoundDaemon first = find("run-1");
  const UniqueFd listener = must(listen_attach(service_.attach_socket()));
  EXPECT_EQ(find("run-1").folder.path, first.folder.path);
  EXPECT_EQ(find("run-2").folder.path, service_.path);
}

// While one of its ranks starts an elixird, the others wait for that one.
TEST_F(LaunchesTest, AServiceThatComesWhileOneStartsSeparatesNoRanks) {
  const DaemonPlaces own = places("run-1");
  ASSERT_TRUE(make_launch_folder(own.own).ok());
  UniqueFd lock(::open(own.own.start_lock_file().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const UniqueFd listener = must(listen_attach(service_.attach_socket()));
  UniqueFd started;
  const DaemonStart start{.interrupted = [&] {
    started = must(listen_attach(own.own.attach_socket()));
    lock.reset();
    return false;
  }};
  EXPECT_EQ(must(find_or_start_daemon(own, start)).folder.path, own.own.path);
}

TEST_F(FindDaemonTest, OneThatEndsWhileStartingIsExplainedByItsLog) {
  ::setenv("STANDIN_FAIL", "1", 1);
  const auto daemon = find_or_start_daemon({.own = folder_}, {});
  expect_refused(daemon.status(), Code::kUnavailable,
                 {"standin: told to fail", folder_.log_file()});
}

TEST_F(FindDaemonTest, OneThatNeverListensIsEnded) {
  ::setenv("STANDIN_SILENT", "1", 1);
  DaemonStart start;
  start.timeout_ms = 300;
  const auto daemon = find_or_start_daemon({.own = folder_}, start);
  EXPECT_EQ(daemon.status().code(), Code::kUnavailable);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "it is left";
}

TEST_F(FindDaemonTest, AProgramThatIsNotThereIsExplained) {
  ::setenv("ELIXIRD", "/nonexistent/elixird", 1);
  const auto daemon = find_or_start_daemon({.own = folder_}, {});
  expect_refused(daemon.status(), Code::kUnavailable, {"ELIXIRD"});
}

}  // namespace
}  // namespace elixir::shm
