// step() beside other threads that read parameters: it comes before operators that begin later, and
// in the scope of elixir::consistent() they read the weights of one step.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "client/elixir.h"
#include "tests/client/first_operator.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/patience.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

bool ready(const std::future<void>& future) {
  return future.wait_until(std::chrono::steady_clock::time_point()) == std::future_status::ready;
}

class ConsistentTest : public WithElixird {
 protected:
  void SetUp() override {
    Options options;
    options.layout = {.chunk_numel = kLayerNumel, .rcache_blocks = 1};
    optimizer_ = std::make_unique<AdamW>(model_, AdamWOptions{.lr = 1e-2}, options);
    (first().square().sum() + second().square().sum()).backward();
    before_ = second().detach().clone();
  }
  void TearDown() override { optimizer_.reset(); }

  at::Tensor first() { return model_.layers[0]->weight; }
  at::Tensor second() { return model_.layers[1]->weight; }

  // step() in another thread, which waits for what this thread holds, or has ended.
  std::future<void> start_step() {
    stepper_ = 0;
    std::future<void> step = std::async(std::launch::async, [this] {
      stepper_ = gettid();
      optimizer_->step();
    });
    EXPECT_TRUE(eventually([&] { return ready(step) || (stepper_ != 0 && asleep(stepper_)); }));
    return step;
  }

  Stack model_{2};
  std::unique_ptr<AdamW> optimizer_;
  at::Tensor before_;
  std::atomic<pid_t> stepper_ = 0;
};

// The control: a pass beside step() sees the first chunk before it and the second one after.
TEST_F(ConsistentTest, WithoutItAPassMayBeTorn) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = first().clone();
  std::async(std::launch::async, [&] { optimizer_->step(); }).wait();
  EXPECT_FALSE(at::equal(second(), before_));
  EXPECT_FALSE(at::equal(first(), a));
}

TEST_F(ConsistentTest, StepWaitsForTheScope) {
  const at::NoGradGuard no_grad;
  std::future<void> step;
  {
    const Consistent scope = consistent(*optimizer_);
    const at::Tensor a = first().clone();
    step = start_step();
    EXPECT_FALSE(ready(step));
    EXPECT_TRUE(at::equal(second(), before_));
    EXPECT_TRUE(at::equal(first(), a));
  }
  step.get();
  EXPECT_FALSE(at::equal(second(), before_));
}

// As a pool of threads does, and a backward pass on CUDA.
TEST_F(ConsistentTest, AThreadThatTheScopeWaitsForReadsWhileStepWaits) {
  std::future<void> step, other;
  {
    const Consistent scope = consistent(*optimizer_);
    step = start_step();
    other = std::async(std::launch::async, [&] {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(second(), before_));
    });
    EXPECT_TRUE(eventually([&] { return ready(other); }));
    EXPECT_FALSE(ready(step));
  }
  step.get();
  other.get();
}

// step() converts a gradient that was given by hand, without the mutex. Eight threads come then.
TEST_F(ConsistentTest, NoOperatorOfEightThreadsBeginsBeforeAStepThatHasAsked) {
  constexpr size_t kThreads = 8;
  optimizer_->zero_grad();
  first().mutable_grad() = at::ones(first().sizes(), at::kDouble);
  std::atomic<bool> asked = false;
  std::atomic<size_t> coming = 0;
  std::array<std::atomic<pid_t>, kThreads> ids = {};
  std::array<std::future<void>, kThreads> threads;
  std::array<at::Tensor, kThreads> seen;
  const at::Tensor before = first().detach().clone();
  for (size_t i = 0; i < kThreads; ++i) {
    threads[i] = std::async(std::launch::async, [&, i] {
      const at::NoGradGuard no_grad;
      ids[i] = gettid();
      asked.wait(false);
      ++coming;
      seen[i] = first().clone();
    });
  }
  const auto waits_or_ran = [&] {
    if (coming < kThreads) return false;
    for (size_t i = 0; i < kThreads; ++i) {
      if (!ready(threads[i]) && !asleep(ids[i])) return false;
    }
    return true;
  };
  const auto let_them_come = [&] {
    asked = true;
    asked.notify_all();
  };
  {
    const FirstOperator conversion([&] {
      let_them_come();
      EXPECT_TRUE(eventually(waits_or_ran));
    });
    EXPECT_NO_THROW(optimizer_->step());
  }
  EXPECT_EQ(coming, kThreads);
  let_them_come();
  for (std::future<void>& thread : threads) thread.get();
  const at::Tensor after = first().detach().clone();
  EXPECT_FALSE(at::equal(after, before));
  for (const at::Tensor& values : seen) EXPECT_TRUE(at::equal(values, after));
}

TEST_F(ConsistentTest, StepInTheScopeIsAnErrorAndTheScopeMayOutliveTheOptimizer) {
  {
    const Consistent scope = consistent(*optimizer_);
    expect_thrown(Code::kInvalidArgument, {"step()", "elixir::consistent()"},
                  [&] { optimizer_->step(); });
  }
  optimizer_->step();
  const Consistent scope = consistent(*optimizer_);
  optimizer_.reset();
}

}  // namespace
}  // namespace elixir::test
