#include "client/train/operator_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/patience.h"

namespace elixir {
namespace {

using enum OperatorGate::Kind;
using Kind = OperatorGate::Kind;

constexpr uint32_t kThreads = 8;

class OperatorGateTest : public ::testing::Test {
 protected:
  explicit OperatorGateTest(std::chrono::nanoseconds patience = std::chrono::hours(24))
      : gate_(patience) {}
  ~OperatorGateTest() override {
    for (std::thread& thread : threads_) thread.join();
  }

  void start(std::function<void()> run) { threads_.emplace_back(std::move(run)); }

  // Until it is so, as other threads change it under the mutex.
  void await(const std::function<bool()>& reached) {
    EXPECT_TRUE(test::eventually([&] {
      const MutexLock lock(mutex_);
      return reached();
    }));
  }
  void begin(Kind kind) {
    MutexLock lock(mutex_);
    gate_.pass(kind, lock);
    kind == kScope ? gate_.begin_scope() : gate_.begin_operator();
    ++begun_;
  }
  void end(Kind kind) {
    const MutexLock lock(mutex_);
    kind == kScope ? gate_.end_scope() : gate_.end_operator();
  }
  void run(Kind kind) {
    begin(kind);
    end(kind);
  }
  // A call asks in a thread of its own, and waits for what has begun.
  void start_call() {
    start([&] {
      gate_.close();
      MutexLock lock(mutex_);
      asked_ = true;
      gate_.await_none(lock);
      begun_before_call_ = begun_;
      gate_.open(lock);
    });
    await([&] { return asked_; });
  }

  Mutex mutex_;
  OperatorGate gate_;
  uint32_t begun_ = 0, begun_before_call_ = UINT32_MAX;
  bool asked_ = false;
  std::vector<std::thread> threads_;
};

// An operator runs, then a call asks, then eight threads come.
TEST_F(OperatorGateTest, NoOperatorBeginsBeforeACallThatHasAsked) {
  begin(kOperator);
  start_call();
  for (uint32_t i = 0; i < kThreads; ++i) {
    start([&] { run(kOperator); });
  }
  await([&] { return gate_.waiting() == kThreads; });
  run(kOperator);  // this thread is inside, and is waited for
  EXPECT_EQ(begun_, 2u);
  end(kOperator);
  await([&] { return begun_ == 2 + kThreads; });
  EXPECT_EQ(begun_before_call_, 2u);
}

// Those of a scope's other threads must end before the scope can.
TEST_F(OperatorGateTest, OperatorsOfAnyThreadBeginWhileAScopeIsHeld) {
  begin(kScope);
  start_call();
  for (uint32_t i = 0; i < kThreads; ++i) {
    start([&] { run(kOperator); });
  }
  await([&] { return begun_ == 1 + kThreads; });
  end(kScope);
  await([&] { return begun_before_call_ != UINT32_MAX; });
  EXPECT_EQ(begun_before_call_, 1 + kThreads);
}

TEST_F(OperatorGateTest, OperatorsThatWaitBeginWithAScopeInsideOfAnOperator) {
  begin(kOperator);
  start_call();
  start([&] { run(kOperator); });
  await([&] { return gate_.waiting() == 1; });
  begin(kScope);
  await([&] { return begun_ == 3; });
  end(kScope);
  end(kOperator);
}

// Else scopes, one over the other, would hold up step() for ever.
TEST_F(OperatorGateTest, AScopeThatComesAfterTheCallWaits) {
  begin(kScope);
  start_call();
  start([&] { run(kScope); });
  await([&] { return gate_.waiting() == 1; });
  run(kScope);  // this thread is inside
  EXPECT_EQ(begun_, 2u);
  end(kScope);
  await([&] { return begun_ == 3; });
  EXPECT_EQ(begun_before_call_, 2u);
}

class OperatorGatePatience : public OperatorGateTest {
 protected:
  static constexpr std::chrono::nanoseconds kPatience = std::chrono::milliseconds(20);
  OperatorGatePatience() : OperatorGateTest(kPatience) {}
};

TEST_F(OperatorGatePatience, AnOperatorThatAnOperatorWaitsForBegins) {
  begin(kOperator);
  start_call();
  start([&] { run(kOperator); });
  await([&] { return begun_ == 2; });
  EXPECT_EQ(gate_.patience(), kPatience);
  end(kOperator);
}

TEST_F(OperatorGatePatience, AScopeThatAScopeWaitsForBegins) {
  for (const bool beside_operators : {false, true}) {  // that never stop, of another thread
    asked_ = false;
    begun_before_call_ = UINT32_MAX;
    std::atomic<bool> stop = !beside_operators;
    begin(kScope);
    start_call();
    std::thread operators([&] {
      while (!stop) run(kOperator);
    });
    bool begun = false;
    std::thread scope([&] {
      run(kScope);
      const MutexLock lock(mutex_);
      begun = true;
    });
    await([&] { return begun; });
    EXPECT_EQ(gate_.patience(), 2 * kPatience);  // so that scopes cannot hold up the call for ever
    stop = true;
    operators.join();
    end(kScope);
    scope.join();
    await([&] { return begun_before_call_ != UINT32_MAX; });
    EXPECT_EQ(gate_.patience(), kPatience);
  }
}

// step() asks twice, and nobody comes in between.
TEST_F(OperatorGateTest, IsClosedUntilTheLastCallOpensIt) {
  gate_.close();
  gate_.close();
  start([&] { run(kOperator); });
  await([&] { return gate_.waiting() == 1; });
  {
    MutexLock lock(mutex_);
    gate_.await_none(lock);
    gate_.open(lock);
    EXPECT_EQ(begun_, 0u);
  }
  run(kOperator);  // the caller's own
  EXPECT_EQ(begun_, 1u);
  {
    const MutexLock lock(mutex_);
    gate_.open(lock);
  }
  await([&] { return begun_ == 2; });
}

// A scope may outlive its optimizer, and the next optimizer lie where that one was.
TEST_F(OperatorGateTest, AGateWhereAnotherWasHasNoneOfItsScopes) {
  std::optional<OperatorGate> gate;
  gate.emplace();
  gate->begin_scope();
  gate.emplace();
  EXPECT_TRUE(gate->inside().nothing());
}

TEST_F(OperatorGateTest, EachGateHasItsOwnOperators) {
  OperatorGate other;
  begin(kOperator);
  EXPECT_EQ(gate_.inside().operators, 1u);
  EXPECT_EQ(other.inside().operators, 0u);
  EXPECT_EQ(gate_.inside().operators, 1u);
  end(kOperator);
  EXPECT_TRUE(gate_.inside().nothing());
}

}  // namespace
}  // namespace elixir
