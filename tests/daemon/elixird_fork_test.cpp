// A trainer's death, while children that it forked live on: data loaders hold its attach socket.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/daemon/told.h"
#include "tests/support/median.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

using test::median;

constexpr uint32_t kChildren = 4;

FakeModel model(uint32_t ranks = 2) { return make_model(ComputeType::kFp32, ranks, 2, 4096); }

// The last rank, in a process of its own, with children of its own that outlive it.
class ForkingTrainer {
 public:
  explicit ForkingTrainer(const DaemonProcess& daemon, uint32_t ranks = 2,
                          uint32_t n_children = kChildren)
      : children_(n_children) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      run(daemon, ranks, ends[1]);
    }
    ::close(ends[1]);
    channel_.reset(ends[0]);
  }
  ~ForkingTrainer() {
    kill();
    ::waitpid(pid_, nullptr, 0);
    for (const pid_t child : children_) {
      if (child > 0) ::kill(child, SIGKILL);
    }
  }

  // It has said hello, and its children are there.
  bool await() {
    char ready;
    for (pid_t& child : children_) {
      if (::read(channel_.get(), &child, sizeof child) != ssize_t{sizeof child}) return false;
    }
    return ::read(channel_.get(), &ready, 1) == 1;
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  // Says goodbye and exits.
  void leave() const { EXPECT_EQ(::write(channel_.get(), "x", 1), 1); }
  bool gone() const { return test::gone(pid_); }
  const std::vector<pid_t>& children() const { return children_; }
  void expect_children_live() const {
    for (const pid_t child : children_) EXPECT_FALSE(test::gone(child));
  }

 private:
  [[noreturn]] void run(const DaemonProcess& daemon, uint32_t ranks, int channel) const {
    const FakeModel mine = model(ranks);
    auto trainer = FakeTrainer::attach(
        {.folder = daemon.folder(), .rank = ranks - 1, .shape = mine.shape, .places = mine.places});
    if (!trainer.ok() || !(*trainer)->await_peers().ok() || !(*trainer)->hello().ok()) ::_exit(1);
    (*trainer)->keep_memory_from_children();
    for (size_t i = 0; i < children_.size(); ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(300);
        ::close(channel);  // who waits for them hears of the trainer's failure
        for (;;) ::pause();
      }
      if (::write(channel, &child, sizeof child) < 0) ::_exit(1);
    }
    char order = 'r';
    if (::write(channel, &order, 1) == 1 && ::read(channel, &order, 1) == 1) (*trainer)->detach();
    ::_exit(0);
  }

  pid_t pid_ = -1;
  UniqueFd channel_;
  std::vector<pid_t> children_;  // 0: not read yet
};

size_t open_memfds(pid_t pid) {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().find("memfd:elixir-") !=
             std::string::npos;
  }
  return count;
}

class Fork : public ::testing::Test {
 protected:
  // Both ranks are there. Rank 0 comes after the fork, with its threads.
  void start() {
    const FakeModel mine = model();
    first_ = must(FakeTrainer::attach(
        {.folder = daemon_.folder(), .shape = mine.shape, .places = mine.places}));
    ASSERT_TRUE(first_->await_peers().ok());
    ASSERT_TRUE(first_->hello().ok());
    ASSERT_TRUE(trainer_.await()) << daemon_.log();
  }

  DaemonProcess daemon_;
  ForkingTrainer trainer_{daemon_};
  std::unique_ptr<FakeTrainer> first_;
};

TEST_F(Fork, ATrainersDeathIsSeenAndItsMemoryFreedWhileItsChildrenLive) {
  start();
  for (const pid_t child : trainer_.children()) {
    EXPECT_EQ(mapped_memfds(child) + open_memfds(child), 0u);
  }
  trainer_.kill();
  expect_ended(*first_, Code::kPeerLost, 1, "died");
  EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon_.pid()) == 0; }));
  trainer_.expect_children_live();
}

// elixird sees the end of the process and its last word together.
TEST_F(Fork, WhatATrainerSaidBeforeItsEndCounts) {
  start();
  daemon_.signal(SIGSTOP);
  trainer_.leave();
  EXPECT_TRUE(test::eventually([&] { return trainer_.gone(); }));
  daemon_.signal(SIGCONT);
  EXPECT_TRUE(
      becomes_true([&] { return daemon_.log().find("event=detach") != std::string::npos; }));
  EXPECT_EQ(daemon_.log().find("event=lost"), std::string::npos) << daemon_.log();
  trainer_.expect_children_live();
}

// From a trainer's death until elixird has none of its memory, its children alive. Tests of time
// have an entry of ctest with the label timing.
double seconds_to_free(const DaemonProcess& daemon, uint32_t n_children) {
  ForkingTrainer trainer(daemon, /*ranks=*/1, n_children);
  EXPECT_TRUE(trainer.await()) << daemon.log();
  const int64_t killed_ns = monotonic_ns();
  trainer.kill();
  EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon.pid()) == 0; }));
  const double seconds = seconds_since(killed_ns);
  trainer.expect_children_live();
  return seconds;
}

// Half a second is promised. A machine that is busy takes its time without children, too, so what
// counts is the difference; and half of it, since a look once a second would on average take half a
// second.
TEST(ForkTime, ChildrenThatLiveOnHardlyDelayTheRelease) {
  const DaemonProcess daemon;
  std::vector<double> alone_s, with_children_s;
  for (int round = 0; round < 7; ++round) {
    alone_s.push_back(seconds_to_free(daemon, 0));
    with_children_s.push_back(seconds_to_free(daemon, kChildren));
  }
  std::printf("freed after %.1f ms without children, %.1f ms with %u\n", 1e3 * median(alone_s),
              1e3 * median(with_children_s), kChildren);
  EXPECT_LT(median(with_children_s), median(alone_s) + 0.25);
}

}  // namespace
}  // namespace elixir::testing
