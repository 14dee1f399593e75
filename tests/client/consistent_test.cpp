// elixir::consistent(): what a thread reads in its scope is of one step.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "client/elixir.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

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

  Stack model_{2};
  std::unique_ptr<AdamW> optimizer_;
  at::Tensor before_;
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
    step = std::async(std::launch::async, [&] { optimizer_->step(); });
    for (int read = 0; read < 100; ++read) {  // step() asks somewhere here
      EXPECT_TRUE(at::equal(second(), before_));
      EXPECT_TRUE(at::equal(first(), a));
    }
  }
  step.get();
  EXPECT_FALSE(at::equal(second(), before_));
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
