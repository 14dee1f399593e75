#include "daemon/background.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "tests/support/patience.h"

namespace elixir::daemon {
namespace {

// What tasks wait for.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class BackgroundThreads : public ::testing::Test {
 protected:
  // Until so many are over.
  bool finish(Background& background, const int& over, int wanted) {
    return test::eventually([&] {
      background.run_finished();
      return over >= wanted;
    });
  }
  UniqueFd done_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

TEST_F(BackgroundThreads, OneMoreIsStartedWhileAllHaveATaskThatHangs) {
  Gate gate;
  std::atomic<int> hanging{0};
  int over = 0, hung = 0;
  Background background({.threads = 1, .most_threads = 4}, done_.get());
  for (int i = 0; i < 3; ++i) {
    background.start(
        [&] {
          ++hanging;
          gate.pass();
        },
        [&hung] { ++hung; });
  }
  for (int i = 0; i < 20; ++i) background.start([] {}, [&over] { ++over; });
  EXPECT_TRUE(finish(background, over, 20)) << hanging << " hang";
  EXPECT_TRUE(test::eventually([&] { return hanging == 3; }));
  EXPECT_EQ(hung, 0);
  gate.open();
  EXPECT_TRUE(finish(background, hung, 3));
}

TEST_F(BackgroundThreads, NoMoreAreStartedThanMayBeNorWhileOneIsIdle) {
  Gate gate;
  std::atomic<int> hanging{0};
  std::mutex mutex;
  std::vector<std::thread::id> seen;
  int over = 0;
  Background background({.threads = 1, .most_threads = 2}, done_.get());
  for (int i = 0; i < 10; ++i) {
    background.start(
        [&] {
          const std::lock_guard lock(mutex);
          seen.push_back(std::this_thread::get_id());
        },
        [&over] { ++over; });
    EXPECT_TRUE(finish(background, over, i + 1));
    // It has told before it waits for the next one.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_LE(std::unique(seen.begin(), seen.end()) - seen.begin(), 2);
  int hung = 0;
  for (int i = 0; i < 5; ++i) {
    background.start(
        [&] {
          ++hanging;
          gate.pass();
        },
        [&hung] { ++hung; });
  }
  EXPECT_TRUE(test::eventually([&] { return hanging == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(hanging, 2);
  gate.open();
  EXPECT_TRUE(finish(background, hung, 5));
}

}  // namespace
}  // namespace elixir::daemon
