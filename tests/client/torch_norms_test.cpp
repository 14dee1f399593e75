// Norms of gradients, scaled losses and steps that are skipped, with torch::optim::AdamW beside:
// equal weights, or an error that names the remedy. The rows of docs/training.md name these tests.

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
  expect_error(mode(), small_net,
               [](Module& net, Trainer& t) {
                 net_loss(net, 0, t).backward();
                 torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0);
               },
               {"gradient of '", "clip_norm"});
}

TEST_P(TorchNorms, ClipNormIsClipGradNorm) {
  Settings settings;
  settings.options.clip_norm = 0.05;
  expect_like_torch(
      mode(), small_net,
      [](Module& net, Trainer& t) {
        for (int64_t i = 0; i < 4; ++i) {
          t.zero_grad();
          net_loss(net, i, t).backward();
          if (!t.elixir()) torch::nn::utils::clip_grad_norm_(net.parameters(), 0.05);
          t.step();
        }
      },
      settings);
}

TEST_P(TorchNorms, AScaledLoss) {
  Settings settings;
  settings.options.loss_scale = 1024;
  expect_like_torch(
      mode(), small_net,
      [](Module& net, Trainer& t) {
        for (int64_t i = 0; i < 3; ++i) {
          t.zero_grad();
          const at::Tensor loss = net_loss(net, i, t);
          (t.elixir() ? t.elixir()->scale(loss) : loss).backward();
          t.step();
        }
      },
      settings);
}

TEST_P(TorchNorms, ALossScaleThatNobodyAskedForIsRefused) {
  Settings settings;
  settings.options.loss_scale = 1024;
  expect_error(
      mode(), small_net, [](Module& net, Trainer& t) { plain_step(net, t, 0); },
      {"loss scale of 1024", "optimizer.scale(loss)"}, settings);
}

TEST_P(TorchNorms, ANaNDatumSkipsItsStep) {
  Settings settings;
  settings.options.clip_norm = 1e9;
  ::testing::internal::CaptureStderr();
  expect_like_torch(
      mode(), small_net,
      [](Module& net, Trainer& t) {
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
      },
      settings);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of("event=step_skipped ", log), mode().ranks) << log;
  EXPECT_EQ(count_of("event=step_skipped step=2 in_a_row=1 ", log), mode().ranks) << log;
}

TEST_P(TorchNorms, AHundredSkippedStepsAreAnError) {
  Settings settings;
  settings.options.clip_norm = 1;
  ::testing::internal::CaptureStderr();
  expect_error(
      mode(), small_net,
      [](Module& net, Trainer& t) {
        for (int64_t i = 0; i < 110; ++i) {
          net_loss(net, i, t).mul(std::numeric_limits<double>::quiet_NaN()).backward();
          t.step();
          t.elixir()->outcome();
        }
      },
      {"were all skipped", "not finite"}, settings);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_GE(count_of("event=step_skipped step=10 in_a_row=10 ", log), 1u) << log;
}

}  // namespace
}  // namespace elixir::test
