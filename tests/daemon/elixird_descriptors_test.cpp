// Descriptors or threads run out, or nobody reads the log: elixird lives and keeps its jobs, and
// says what it needs.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/daemon/strangers.h"

namespace elixir::testing {
namespace {

constexpr int kFewDescriptors = 64;

std::vector<std::string> with_descriptors(int limit) {
  return {"prlimit", "--nofile=" + std::to_string(limit)};
}

// libzmq ends the process when it finds no descriptor for a connection.
TEST_P(Sockets, MoreConnectionsThanDescriptorsEndNothing) {
  DaemonProcess daemon({}, "", with_descriptors(kFewDescriptors));
  const auto job = start_job(daemon, "old");
  const size_t before = open_descriptors(daemon.pid());
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 400; ++i) {
    UniqueFd socket = connect_to(path(daemon), type());
    ASSERT_TRUE(daemon.running()) << daemon.log();
    if (socket.valid()) {
      idle.push_back(std::move(socket));
    } else {
      ::usleep(1000);  // the backlog is full; cannot fail by chance: how many come does not count
    }
  }
  // Whom it could not keep it has closed: nobody is left to wait in the backlog for ever.
  EXPECT_TRUE(becomes_true([&] {
    const auto closed = std::count_if(idle.begin(), idle.end(),
                                      [](const UniqueFd& fd) { return is_closed(fd.get()); });
    return static_cast<size_t>(closed) + kFewDescriptors >= idle.size();
  }));
  EXPECT_LT(open_descriptors(daemon.pid()), static_cast<size_t>(kFewDescriptors));
  expect_steps(*job, 3);

  idle.clear();
  EXPECT_TRUE(becomes_true([&] { return open_descriptors(daemon.pid()) <= before; }));
  expect_steps(*start_job(daemon, "new"), 1);
  EXPECT_TRUE(job->step(4).ok());
}

TEST(Door, AJobThatNeedsMoreDescriptorsIsRefusedWithTheLimit) {
  DaemonProcess daemon({}, "", with_descriptors(kFewDescriptors));
  EXPECT_NE(daemon.ask_status(), "");  // it has said at its start what there is to say
  EXPECT_EQ(count(daemon.log(), "event=descriptor_limit"), 1u) << daemon.log();
  expect_refused(FakeJob::start({.folder = daemon.folder(), .model = door_model(8)}).status(),
                 Code::kResourceExhausted,
                 {"8 ranks", "whose limit is 64", "ulimit -n", "LimitNOFILE"});
  // As many as it said it is enough for.
  expect_steps(*start_job(daemon, "pair", 2), 1);
}

// The limit that is just enough for them, so that no line of the log asks for more.
TEST(Door, EightRanksTrainWithinWhatIsCountedForThem) {
  constexpr int kJustEnough = 138;
  DaemonProcess daemon({"--max-sessions", "8"}, "", with_descriptors(kJustEnough));
  EXPECT_NE(daemon.ask_status(), "");
  EXPECT_EQ(count(daemon.log(), "event=descriptor_limit"), 0u) << daemon.log();
  const auto job = start_job(daemon, "job", 8);
  expect_steps(*job, 3);
  EXPECT_EQ(count(daemon.log(), "event=lost"), 0u) << daemon.log();
  EXPECT_NE(daemon.ask_status(), "");
}

// ---- descriptors under way ----

class Unprivileged : public ::testing::Test {
 protected:
  static constexpr uid_t kUser = 54321;
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
    ASSERT_EQ(::chmod(home_.path().c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(folder().c_str(), 0700), 0);
    ASSERT_EQ(::chown(folder().c_str(), kUser, kUser), 0);
  }
  std::string folder() const { return home_.path() + "/run"; }
  static std::vector<std::string> as_user(const std::string& limit) {
    const std::string id = std::to_string(kUser);
    return {"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", "prlimit", limit};
  }
  const TemporaryFolder home_;
};

// All ranks' descriptors for all ranks are more than may be under way at once: ranks wait, none
// dies.
TEST_F(Unprivileged, MoreDescriptorsThanMayBeUnderWay) {
  constexpr uint32_t kRanks = 18;
  DaemonProcess daemon({}, folder(), as_user("--nofile=300"));
  ASSERT_TRUE(daemon.running()) << daemon.log();
  const auto job = must(FakeJob::attach({.folder = daemon.folder(), .model = door_model(kRanks)}));
  EXPECT_EQ(count(daemon.log(), "event=lost"), 0u) << daemon.log();
}

// A user who may have no more threads: a message, or fewer workers; never std::terminate.
TEST_F(Unprivileged, TooFewThreadsAreAnErrorOrFewerWorkers) {
  bool refused = false, fewer = false;
  for (int threads = 2; threads <= 20; ++threads) {
    DaemonProcess daemon({"--workers", "8"}, folder(),
                         as_user("--nproc=" + std::to_string(threads)));
    if (daemon.running()) {
      fewer = fewer || count(daemon.log(), "event=threads_refused") > 0;
      EXPECT_NE(daemon.ask_status(), "");
      daemon.signal(SIGTERM);
      EXPECT_EQ(daemon.wait(), 0) << threads << daemon.log();
      continue;
    }
    EXPECT_EQ(daemon.wait(), static_cast<int>(Code::kResourceExhausted)) << threads << daemon.log();
    EXPECT_NE(daemon.log().find("ulimit -u"), std::string::npos) << daemon.log();
    EXPECT_NE(daemon.log().find("TasksMax"), std::string::npos) << daemon.log();
    refused = true;
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(fewer);
}

// A pipe without room holds up whoever writes to it. The first line of the log comes before the
// sockets.
TEST(Descriptors, ALogThatNobodyReadsHoldsElixirdUpNowhere) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  const std::string bytes(PIPE_BUF, 'x');
  while (::write(writer.get(), bytes.data(), bytes.size()) > 0) continue;
  ASSERT_EQ(errno, EAGAIN);
  ASSERT_EQ(::fcntl(writer.get(), F_SETFL, 0), 0);  // as elixird finds one

  const TemporaryFolder home;
  const shm::RuntimeFolder folder{home.path() + "/run"};
  const pid_t elixird = start_elixird(folder, writer.get());
  EXPECT_NE(ask_status(folder), "");
  ::kill(elixird, SIGKILL);
  EXPECT_EQ(::waitpid(elixird, nullptr, 0), elixird);
}

}  // namespace
}  // namespace elixir::testing
