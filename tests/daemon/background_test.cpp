#include "daemon/background.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <new>
#include <thread>

#include "base/fd.h"
#include "tests/support/patience.h"

namespace elixir::daemon {
namespace {

class BackgroundThreads : public ::testing::Test {
 protected:
  // Until so many are over.
  bool finish(Background& background, const int& over, int wanted) {
    return test::eventually([&] {
      background.run_finished();
      return over >= wanted;
    });
  }
  // Tasks that hang until the gate is open.
  void start_hanging(Background& background, int tasks) {
    for (int i = 0; i < tasks; ++i) {
      background.start(
          [this] {
            ++hanging_;
            opened_.wait();
          },
          [this] { ++hung_; });
    }
  }

  UniqueFd done_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::promise<void> gate_;
  const std::shared_future<void> opened_ = gate_.get_future().share();
  std::atomic<int> hanging_{0};
  int hung_ = 0;
};

TEST_F(BackgroundThreads, OneMoreIsStartedWhileAllHaveATaskThatHangs) {
  int over = 0;
  Background background({.threads = 1, .most_threads = 4}, done_.get());
  start_hanging(background, 3);
  for (int i = 0; i < 20; ++i) background.start([] {}, [&over] { ++over; });
  EXPECT_TRUE(finish(background, over, 20)) << hanging_ << " hang";
  EXPECT_TRUE(test::eventually([&] { return hanging_ == 3; }));
  EXPECT_EQ(hung_, 0);
  gate_.set_value();
  EXPECT_TRUE(finish(background, hung_, 3));
}

TEST_F(BackgroundThreads, NoMoreAreStartedThanMayBeNorWhileOneIsIdle) {
  std::mutex mutex;
  std::vector<std::thread::id> seen;
  int over = 0;
  Background background({.threads = 1, .most_threads = 4}, done_.get());
  for (int i = 0; i < 10; ++i) {
    background.start(
        [&] {
          const std::lock_guard lock(mutex);
          seen.push_back(std::this_thread::get_id());
        },
        [&over] { ++over; });
    // It lets go of the lock, and so tells, only once it counts as idle.
    EXPECT_TRUE(finish(background, over, i + 1));
  }
  std::sort(seen.begin(), seen.end());
  // A second one where the first had not begun when its task came.
  EXPECT_LE(std::unique(seen.begin(), seen.end()) - seen.begin(), 2);
  start_hanging(background, 6);
  EXPECT_TRUE(test::eventually([&] { return hanging_ == 4; }));
  // cannot fail by chance: there are four threads, and the gate is closed.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(hanging_, 4);
  gate_.set_value();
  EXPECT_TRUE(finish(background, hung_, 6));
}

TEST_F(BackgroundThreads, WorkThatRunsOutOfMemoryEndsThereAndItsEndIsHeard) {
  int over = 0;
  Background background({.threads = 1}, done_.get());
  for (int i = 0; i < 2; ++i) {
    background.start([] { throw std::bad_alloc(); }, [&over] { ++over; });
  }
  EXPECT_TRUE(finish(background, over, 2));
}

// A lack of memory in what follows one task takes no other's, nor the event loop.
TEST_F(BackgroundThreads, WhatFollowsATaskAndRunsOutOfMemoryEndsAlone) {
  int over = 0;
  Background background({.threads = 1}, done_.get());
  for (int i = 0; i < 3; ++i) {
    background.start([] {},
                     [&over, i] {
                       ++over;
                       if (i < 2) throw std::bad_alloc();
                     });
  }
  EXPECT_TRUE(finish(background, over, 3));
}

}  // namespace
}  // namespace elixir::daemon
