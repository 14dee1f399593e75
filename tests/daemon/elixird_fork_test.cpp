// A trainer's death, while children that it forked live on: data loaders hold its attach socket.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/clock.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

constexpr uint32_t kChildren = 4;

FakeModel model() { return make_model(ComputeType::kFp32, 2, 2, 4096); }

// Rank 1, in a process of its own, with children of its own that outlive it.
class ForkingTrainer {
 public:
  explicit ForkingTrainer(const DaemonProcess& daemon) {
    int pids[2], orders[2];
    EXPECT_EQ(::pipe(pids), 0);
    EXPECT_EQ(::pipe(orders), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(pids[0]);
      ::close(orders[1]);
      run(daemon, pids[1], orders[0]);
    }
    ::close(pids[1]);
    ::close(orders[0]);
    pids_ = pids[0];
    orders_ = orders[1];
  }
  ~ForkingTrainer() {
    ::kill(pid_, SIGKILL);
    reap();
    for (const pid_t child : children_) ::kill(child, SIGKILL);
    ::close(pids_);
    ::close(orders_);
  }

  // It has said hello, and its children are there.
  bool await() {
    pid_t children[kChildren] = {};
    const bool read = ::read(pids_, children, sizeof children) == ssize_t{sizeof children};
    if (read) children_.assign(children, children + kChildren);
    return read;
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  void leave() const { EXPECT_EQ(::write(orders_, "x", 1), 1); }  // says goodbye and exits
  bool gone() const { return test::gone(pid_); }
  const std::vector<pid_t>& children() const { return children_; }

 private:
  [[noreturn]] static void run(const DaemonProcess& daemon, int pids, int orders) {
    const FakeModel mine = model();
    auto trainer = FakeTrainer::attach(
        {.folder = daemon.folder(), .rank = 1, .shape = mine.shape, .places = mine.places});
    if (!trainer.ok() || !(*trainer)->await_peers().ok() || !(*trainer)->hello().ok()) ::_exit(1);
    (*trainer)->keep_memory_from_children();
    pid_t children[kChildren];
    for (pid_t& child : children) {
      child = ::fork();
      if (child == 0) {
        ::alarm(300);
        ::close(pids);  // who waits for them hears of the trainer's failure
        for (;;) ::pause();
      }
    }
    if (::write(pids, children, sizeof children) < 0) ::_exit(1);
    char order;
    if (::read(orders, &order, 1) == 1) (*trainer)->detach();
    ::_exit(0);
  }
  void reap() const { ::waitpid(pid_, nullptr, 0); }

  pid_t pid_ = -1;
  int pids_ = -1, orders_ = -1;
  std::vector<pid_t> children_;
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
    auto first = FakeTrainer::attach(
        {.folder = daemon_.folder(), .shape = mine.shape, .places = mine.places});
    ASSERT_TRUE(first.ok()) << first.status().message();
    first_ = std::move(*first);
    ASSERT_TRUE(first_->await_peers().ok());
    ASSERT_TRUE(first_->hello().ok());
    ASSERT_TRUE(trainer_.await()) << daemon_.log();
  }

  void expect_children_live() {
    for (const pid_t child : trainer_.children()) EXPECT_FALSE(test::gone(child));
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
  const int64_t killed_ns = monotonic_ns();
  trainer_.kill();
  const Result<shm::SessionFault> fault = first_->wait_session_fault();
  RecordProperty("told_after_ms", static_cast<int>(seconds_since(killed_ns) * 1000));
  ASSERT_TRUE(fault.ok()) << fault.status().message();
  EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kPeerLost));
  EXPECT_EQ(fault->rank, 1u);
  EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon_.pid()) == 0; }));
  RecordProperty("freed_after_ms", static_cast<int>(seconds_since(killed_ns) * 1000));
  expect_children_live();
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
  expect_children_live();
}

}  // namespace
}  // namespace elixir::testing
