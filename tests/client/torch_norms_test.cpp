// Norms of gradients, scaled losses and steps that are skipped, with torch::optim::AdamW beside:
// equal weights, or an error that names the remedy. The rows of docs/torch_ways.md name these
// tests.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <limits>

#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchNorms : public InEveryMode {};
IN_EVERY_MODE(TorchNorms);
IN_BF16_ON_TWO_RANKS(TorchNorms);

TEST_P(TorchNorms, ClipGradNormIsRefused) {
  refused({"gradient of '", "clip_norm"}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0);
  });
}

TEST_P(TorchNorms, ClipNormIsClipGradNorm) {
  like_torch({.options = {.clip_norm = 0.05}}, steps(4, [](Module& net, Trainer& t, int64_t i) {
               net_loss(net, i, t).backward();
               if (!t.elixir()) torch::nn::utils::clip_grad_norm_(net.parameters(), 0.05);
             }));
}

TEST_P(TorchNorms, AScaledLoss) {
  like_torch({.options = {.loss_scale = 1024}}, steps(3, [](Module& net, Trainer& t, int64_t i) {
               const at::Tensor loss = net_loss(net, i, t);
               (t.elixir() ? t.elixir()->scale(loss) : loss).backward();
             }));
}

TEST_P(TorchNorms, ALossScaleThatNobodyAskedForIsRefused) {
  const Settings settings{.options = {.loss_scale = 1024}};
  refused({"loss scale of 1024", "optimizer.scale(loss)"}, settings,
          [](Module& net, Trainer& t) { plain_step(net, t, 0); });
}

TEST_P(TorchNorms, ANaNDatumSkipsItsStep) {
  const Settings settings{.options = {.clip_norm = 1e9}};
  ::testing::internal::CaptureStderr();
  like_torch(settings, [](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 4; ++i) {
      t.zero_grad();
      const bool bad = i == 1;
      if (bad && !t.elixir()) continue;
      const double factor = bad ? std::numeric_limits<double>::quiet_NaN() : 1;
      (net_loss(net, i, t) * factor).backward();
      t.step();
      if (t.elixir()) {
        EXPECT_EQ(t.elixir()->outcome().skipped, bad);
      }
    }
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of("event=step_skipped ", log), mode().ranks) << log;
  EXPECT_EQ(count_of("event=step_skipped step=2 in_a_row=1 ", log), mode().ranks) << log;
}

TEST_P(TorchNorms, AHundredSkippedStepsAreAnError) {
  if (collective() && !every_case()) GTEST_SKIP() << "as with elixird, and slower";
  const Settings settings{.options = {.clip_norm = 1}};
  ::testing::internal::CaptureStderr();
  refused({"were all skipped", "not finite"}, settings, [](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 110; ++i) {
      net_loss(net, i, t).mul(std::numeric_limits<double>::quiet_NaN()).backward();
      t.step();
      t.elixir()->outcome();
    }
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_GE(count_of("event=step_skipped step=10 in_a_row=10 ", log), 1u) << log;
}

}  // namespace
}  // namespace elixir::test
