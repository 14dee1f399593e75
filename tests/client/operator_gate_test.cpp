#include "client/train/operator_gate.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

namespace elixir {
namespace {

constexpr uint32_t kThreads = 8;

class OperatorGateTest : public ::testing::Test {
 protected:
  ~OperatorGateTest() override {
    for (std::thread& thread : threads_) thread.join();
  }

  void start(std::function<void()> run) { threads_.emplace_back(std::move(run)); }

  // Until it is so, as other threads change it under the mutex.
  void await(const std::function<bool()>& reached) {
    for (;;) {
      {
        const MutexLock lock(mutex_);
        if (reached()) return;
      }
      std::this_thread::yield();
    }
  }
  void begin(bool scope = false) {
    MutexLock lock(mutex_);
    gate_.pass(lock);
    scope ? gate_.begin_scope() : gate_.begin_operator();
    ++begun_;
  }
  void end(bool scope = false) {
    const MutexLock lock(mutex_);
    scope ? gate_.end_scope() : gate_.end_operator();
  }
  void call() {
    gate_.close();
    MutexLock lock(mutex_);
    asked_ = true;
    gate_.await_none(lock);
    begun_before_call_ = begun_;
    gate_.open(lock);
  }

  Mutex mutex_;
  OperatorGate gate_;
  uint32_t begun_ = 0, begun_before_call_ = UINT32_MAX;
  bool asked_ = false;
  std::vector<std::thread> threads_;
};

// An operator runs, then a call asks, then eight threads come.
TEST_F(OperatorGateTest, NoOperatorBeginsBeforeACallThatHasAsked) {
  for (const bool scope : {false, true}) {
    begun_ = 0;
    asked_ = false;
    begin(scope);
    start([&] { call(); });
    await([&] { return asked_; });
    for (uint32_t i = 0; i < kThreads; ++i) {
      start([&] {
        begin();
        end();
      });
    }
    await([&] { return gate_.waiting() == kThreads; });
    begin();  // this thread is inside, and is waited for
    end();
    EXPECT_EQ(begun_, 2u);
    end(scope);
    await([&] { return begun_ == 2 + kThreads; });
    EXPECT_EQ(begun_before_call_, 2u);
  }
}

// step() asks twice, and nobody comes in between.
TEST_F(OperatorGateTest, IsClosedUntilTheLastCallOpensIt) {
  gate_.close();
  gate_.close();
  start([&] {
    begin();
    end();
  });
  await([&] { return gate_.waiting() == 1; });
  {
    MutexLock lock(mutex_);
    gate_.await_none(lock);
    gate_.open(lock);
    EXPECT_EQ(begun_, 0u);
  }
  begin();  // the caller's own
  end();
  EXPECT_EQ(begun_, 1u);
  {
    const MutexLock lock(mutex_);
    gate_.open(lock);
  }
  await([&] { return begun_ == 2; });
}

TEST_F(OperatorGateTest, EachGateHasItsOwnOperators) {
  OperatorGate other;
  begin();
  EXPECT_EQ(gate_.inside().operators, 1u);
  EXPECT_EQ(other.inside().operators, 0u);
  EXPECT_EQ(gate_.inside().operators, 1u);
  end();
  EXPECT_TRUE(gate_.inside().nothing());
}

}  // namespace
}  // namespace elixir
