// Deferred, immediate and synchronous updates, clipping, accumulation, loss scales: which bits come
// out of a real elixird.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/compute_type_names.h"
#include "tests/client/lazy_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

using ::testing::HasSubstr;

class Updates : public WithElixird {};

TrainingPlan plan_of(uint32_t ranks, ComputeType dtype, uint32_t accumulate) {
  TrainingPlan plan;
  plan.ranks = ranks;
  plan.batch = 2;
  // Long runs, in which a rare difference would show, for the two that users train with.
  plan.steps = ranks == 1 && accumulate == 1 ? 100 : 30;
  plan.dtype = dtype;
  plan.accumulate = accumulate;
  plan.chunk_numel = largest_parameter_numel();
  plan.rcache_blocks = 3;
  return plan;
}

template <typename Run>
std::string message_of(const Run& run) {
  try {
    run();
  } catch (const Error& failure) {
    return failure.what();
  }
  return "";
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST_F(Updates, ImmediateDeferredAndSynchronousGiveTheReferencesBits) {
  for (uint32_t ranks : {1u, 2u}) {
    for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
      for (uint32_t accumulate : {1u, 2u, 4u}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, accumulate {}", ranks, compute_type_name(dtype),
                                 accumulate));
        TrainingPlan plan = plan_of(ranks, dtype, accumulate);
        const TrainingOutcome reference = train_with_scalar_reference(plan);
        for (UpdateMode mode : {UpdateMode::kSync, UpdateMode::kDeferred, UpdateMode::kImmediate}) {
          plan.update = mode;
          expect_equal_weights(train_through_elixird(plan), reference);
        }
      }
    }
  }
}

TEST_F(Updates, ClippingAboutHalfOfTheStepsGivesTheReferencesBits) {
  for (uint32_t ranks : {1u, 2u}) {
    for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
      for (uint32_t accumulate : {1u, 2u, 4u}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, accumulate {}", ranks, compute_type_name(dtype),
                                 accumulate));
        TrainingPlan plan = plan_of(ranks, dtype, accumulate);
        const TrainingOutcome unclipped = train_with_scalar_reference(plan);
        plan.clip_norm = median(unclipped.grad_norms);
        const TrainingOutcome reference = train_with_scalar_reference(plan);
        const auto clipped = std::count_if(reference.grad_norms.begin(), reference.grad_norms.end(),
                                           [&](double norm) { return norm > *plan.clip_norm; });
        EXPECT_GT(clipped, plan.steps / 5);
        EXPECT_LT(clipped, plan.steps * 17 / 20);
        EXPECT_NE(reference.weights_xxh64, unclipped.weights_xxh64);  // it could be seen
        for (UpdateMode mode : {UpdateMode::kSync, UpdateMode::kDeferred}) {
          plan.update = mode;
          const TrainingOutcome ours = train_through_elixird(plan);
          expect_equal_weights(ours, reference);
          EXPECT_EQ(ours.grad_norms, reference.grad_norms);
        }
      }
    }
  }
}

TEST_F(Updates, HomesExchangesAndChunksChangeNoBitOfClippedSteps) {
  for (uint32_t ranks : {1u, 2u}) {
    for (uint32_t accumulate : {1u, 2u}) {
      TrainingPlan plan = plan_of(ranks, ComputeType::kFp32, accumulate);
      plan.steps = 12;
      plan.clip_norm = 1;
      const TrainingOutcome reference = train_with_scalar_reference(plan);
      for (shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
        for (double share : {0.0, 0.5, 1.0}) {
          const bool host = exchange == shm::Exchange::kHost;
          if (host && ranks > 1 && share > 0) continue;  // refused: see below
          for (uint64_t chunk_numel : {largest_parameter_numel(), 3 * largest_parameter_numel()}) {
            SCOPED_TRACE(fmt::format("{} ranks, accumulate {}, exchange {}, share {}, chunks of {}",
                                     ranks, accumulate, static_cast<int>(exchange), share,
                                     chunk_numel));
            plan.exchange = exchange;
            plan.gpu_state_share = share;
            plan.chunk_numel = chunk_numel;
            const TrainingOutcome ours = train_through_elixird(plan);
            expect_equal_weights(ours, reference);
            EXPECT_EQ(ours.grad_norms, reference.grad_norms);
          }
        }
      }
    }
  }
}

// Which of their copies run late, and how late, does not matter: those of a device that copies as
// late as its events allow, and of one behind a slow link.
TEST_F(Updates, ADeviceThatCopiesLateGivesTheSameBits) {
  for (UpdateMode mode : {UpdateMode::kDeferred, UpdateMode::kImmediate}) {
    for (uint32_t accumulate : {1u, 2u}) {
      TrainingPlan plan = plan_of(2, ComputeType::kFp32, accumulate);
      plan.steps = 8;
      plan.update = mode;
      if (mode == UpdateMode::kDeferred) plan.clip_norm = 1;
      const TrainingOutcome reference = train_with_scalar_reference(plan);
      plan.link = HostLink{0.05, 0.03, 0.06, 20};
      expect_equal_weights(train_through_elixird(plan), reference);
      plan.link.reset();
      plan.make_device = [](uint32_t) { return std::make_unique<LazyDevice>(); };
      expect_equal_weights(train_through_elixird(plan), reference);
    }
  }
}

TEST_F(Updates, GroupsHaveTheirOwnRateAndDecay) {
  for (uint32_t ranks : {1u, 2u}) {
    for (double share : {0.0, 0.5}) {
      // Collectives round 16-bit sums.
      const bool collective = ranks > 1 && share > 0;
      TrainingPlan plan = plan_of(ranks, collective ? ComputeType::kFp32 : ComputeType::kBf16, 1);
      plan.steps = 12;
      plan.gpu_state_share = share;
      plan.exchange.reset();
      const TrainingOutcome without = train_with_scalar_reference(plan);
      plan.biases_apart = true;
      const TrainingOutcome reference = train_with_scalar_reference(plan);
      EXPECT_NE(reference.weights_xxh64, without.weights_xxh64);
      expect_equal_weights(train_through_elixird(plan), reference);
    }
  }
}

// ---- loss scales ----

TEST_F(Updates, AnOverflowOnOneRankSkipsTheStepOnAllAndHalvesTheScale) {
  for (shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (double share : {0.0, 0.5}) {
      SCOPED_TRACE(fmt::format("exchange {}, share {}", static_cast<int>(exchange), share));
      // The collective exchange rounds 16-bit sums; FP32 takes a scale as well.
      const bool host = exchange == shm::Exchange::kHost;
      if (host && share > 0) continue;
      TrainingPlan plan = plan_of(2, host ? ComputeType::kFp16 : ComputeType::kFp32, 1);
      plan.steps = 20;
      plan.exchange = exchange;
      plan.gpu_state_share = share;
      plan.dynamic_loss_scale = DynamicLossScale{.init_scale = 256, .growth_interval = 6};
      plan.overflows = [](uint32_t rank, int64_t step) { return rank == 1 && step == 8; };
      const TrainingOutcome ours = train_through_elixird(plan);
      EXPECT_EQ(ours.skipped, 1u);
      std::vector<double> scales(6, 256);
      scales.insert(scales.end(), 3, 512);  // the third of them overflows
      scales.insert(scales.end(), 6, 256);
      scales.insert(scales.end(), 5, 512);
      EXPECT_EQ(ours.loss_scales, scales);
      for (size_t step = 0; step < ours.grad_norms.size(); ++step) {
        EXPECT_EQ(std::isinf(ours.grad_norms[step]), step == 8);
      }
      TrainingPlan without = plan;
      without.leaves_out = [](int64_t step) { return step == 8; };
      without.scale_of_step = scales;
      expect_equal_weights(ours, train_with_scalar_reference(without));
    }
  }
  // That can fail: a run that makes the step has other weights.
  TrainingPlan plan = plan_of(2, ComputeType::kFp16, 1);
  plan.steps = 20;
  plan.loss_scale = 256;
  TrainingPlan without = plan;
  without.leaves_out = [](int64_t step) { return step == 8; };
  EXPECT_NE(train_with_scalar_reference(plan).weights_xxh64,
            train_with_scalar_reference(without).weights_xxh64);
}

TEST_F(Updates, TheFirstStepMayBeSkipped) {
  TrainingPlan plan = plan_of(1, ComputeType::kFp16, 1);
  plan.steps = 4;
  plan.dynamic_loss_scale = DynamicLossScale{.init_scale = 512};
  plan.overflows = [](uint32_t, int64_t step) { return step == 0; };
  const TrainingOutcome ours = train_through_elixird(plan);
  EXPECT_EQ(ours.skipped, 1u);
  EXPECT_EQ(ours.loss_scales, (std::vector<double>{512, 256, 256, 256}));
  TrainingPlan without = plan;
  without.leaves_out = [](int64_t step) { return step == 0; };
  without.scale_of_step = ours.loss_scales;
  expect_equal_weights(ours, train_with_scalar_reference(without));
}

TEST_F(Updates, ADynamicScaleGivesTheBitsOfAConstantOne) {
  TrainingPlan plan = plan_of(1, ComputeType::kFp16, 1);
  plan.steps = 10;
  plan.loss_scale = 256;
  const TrainingOutcome reference = train_with_scalar_reference(plan);
  expect_equal_weights(train_through_elixird(plan), reference);
  plan.loss_scale = 1;
  plan.dynamic_loss_scale = DynamicLossScale{.init_scale = 256};
  expect_equal_weights(train_through_elixird(plan), reference);
}

TEST_F(Updates, AStepThatIsNotFiniteIsSkippedWhereGradientsAreClipped) {
  TrainingPlan plan = plan_of(1, ComputeType::kFp32, 1);
  plan.steps = 6;
  plan.clip_norm = 1;
  plan.overflows = [](uint32_t, int64_t step) { return step == 2; };
  const TrainingOutcome ours = train_through_elixird(plan);
  EXPECT_EQ(ours.skipped, 1u);
  plan.overflows = nullptr;
  plan.leaves_out = [](int64_t step) { return step == 2; };
  expect_equal_weights(ours, train_through_elixird(plan));
}

// ---- backward passes that were not announced ----

// BF16 would round each pass's sum, and another weight would come out.
TEST_F(Updates, BackwardPassesThatNobodyDeclaredAreSummedInFp32) {
  for (uint32_t ranks : {1u, 2u}) {
    for (double share : {0.0, 0.5}) {
      if (ranks > 1 && share > 0) continue;
      TrainingPlan plan = plan_of(ranks, ComputeType::kBf16, 3);
      plan.steps = 8;
      plan.gpu_state_share = share;
      plan.declares = false;
      SCOPED_TRACE(fmt::format("{} ranks, share {}", ranks, share));
      expect_equal_weights(train_through_elixird(plan), train_with_scalar_reference(plan));
      plan.clip_norm = 1;
      const TrainingOutcome clipped = train_through_elixird(plan);
      const TrainingOutcome reference = train_with_scalar_reference(plan);
      expect_equal_weights(clipped, reference);
      EXPECT_EQ(clipped.grad_norms, reference.grad_norms);
      plan.clip_norm.reset();
      plan.make_device = [](uint32_t) { return std::make_unique<LazyDevice>(); };
      expect_equal_weights(train_through_elixird(plan), train_with_scalar_reference(plan));
    }
  }
}

TEST_F(Updates, TheCollectiveExchangeSumsUndeclaredPassesAsDeclaredOnes) {
  for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
    for (double share : {0.0, 0.5}) {
      SCOPED_TRACE(fmt::format("{}, share {}", compute_type_name(dtype), share));
      TrainingPlan plan = plan_of(2, dtype, 3);
      plan.steps = 8;
      plan.exchange = shm::Exchange::kCollective;
      plan.gpu_state_share = share;
      plan.clip_norm = 1;
      const TrainingOutcome declared = train_through_elixird(plan);
      plan.declares = false;
      const TrainingOutcome undeclared = train_through_elixird(plan);
      expect_equal_weights(undeclared, declared);
      EXPECT_EQ(undeclared.grad_norms, declared.grad_norms);
    }
  }
}

TEST_F(Updates, ImmediateUpdatesThroughTheCollectiveExchangeHaveTheSameBits) {
  for (uint32_t accumulate : {1u, 2u}) {
    TrainingPlan plan = plan_of(2, ComputeType::kFp32, accumulate);
    plan.steps = 20;
    const TrainingOutcome reference = train_with_scalar_reference(plan);
    plan.exchange = shm::Exchange::kCollective;
    plan.update = UpdateMode::kImmediate;
    for (double share : {0.0, 0.5}) {
      plan.gpu_state_share = share;
      expect_equal_weights(train_through_elixird(plan), reference);
    }
  }
}

TEST_F(Updates, AParameterReadBetweenBackwardAndAnImmediateStepIsRefused) {
  const auto read_between = [](UpdateMode update) {
    torch::nn::Linear first(16, 16), second(16, 16);
    torch::nn::Sequential model(first, second);
    Options runtime;
    runtime.layout.chunk_numel = 272;
    runtime.layout.rcache_blocks = 1;
    runtime.update = update;
    runtime.environment = LaunchEnvironment{
        0, 1, 0, 1, fmt::format("read-{}", static_cast<int>(update)), "test", "127.0.0.1", 0};
    AdamW optimizer(*model, {}, runtime);
    model->forward(at::ones({2, 16})).sum().backward();
    const at::NoGradGuard no_grad;
    const at::Tensor copy = first->weight.clone();  // its chunk has left the only block
    optimizer.step();
  };
  EXPECT_THAT(message_of([&] { read_between(UpdateMode::kImmediate); }),
              HasSubstr("read them after step()"));
  EXPECT_EQ(message_of([&] { read_between(UpdateMode::kDeferred); }), "");
}

TEST_F(Updates, GradientsThatAreDroppedOrComeTwiceAreClippedAsTheyAreInTheEnd) {
  for (shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    TrainingPlan plan = plan_of(2, ComputeType::kFp32, 1);
    plan.steps = 8;
    plan.clip_norm = 0.5;
    plan.exchange = exchange;
    const TrainingOutcome reference = train_with_scalar_reference(plan);
    plan.empty_backward = true;
    expect_equal_weights(train_through_elixird(plan), reference);
    plan.empty_backward = false;
    plan.backwards = 2;  // twice the gradient: twice the norm
    const TrainingOutcome twice = train_through_elixird(plan);
    // (Later steps begin at other weights: twice the gradient is clipped to the same norm.)
    EXPECT_DOUBLE_EQ(twice.grad_norms[0], 2 * reference.grad_norms[0]);
    EXPECT_EQ(twice.skipped, 0u);
  }
}

TEST_F(Updates, ImmediateUpdatesRefuseWhatTheyCannotTakeBack) {
  TrainingPlan plan = plan_of(1, ComputeType::kFp32, 1);
  plan.steps = 2;
  plan.update = UpdateMode::kImmediate;
  plan.backwards = 2;
  EXPECT_THAT(message_of([&] { train_through_elixird(plan); }), HasSubstr("set accumulate"));
  plan.backwards = 1;
  plan.empty_backward = true;
  EXPECT_THAT(message_of([&] { train_through_elixird(plan); }), HasSubstr("zero_grad()"));
}

TEST_F(Updates, WhatContradictsItselfIsRefused) {
  const auto refusal = [&](const auto& change) {
    TrainingPlan plan = plan_of(1, ComputeType::kFp32, 1);
    plan.steps = 1;
    change(plan);
    return message_of([&] { train_through_elixird(plan); });
  };
  EXPECT_THAT(refusal([](TrainingPlan& plan) { plan.clip_norm = 0; }), HasSubstr("clip_norm = 0"));
  EXPECT_THAT(refusal([](TrainingPlan& plan) { plan.clip_norm = -1; }),
              HasSubstr("greater than 0"));
  EXPECT_THAT(refusal([](TrainingPlan& plan) { plan.accumulate = 0; }),
              HasSubstr("accumulate = 0: a step has 1 to 65536"));
  EXPECT_THAT(refusal([](TrainingPlan& plan) { plan.dtype = ComputeType::kFp16; }),
              HasSubstr("FP16 without a loss scale"));
  EXPECT_THAT(refusal([](TrainingPlan& plan) {
                plan.update = UpdateMode::kImmediate;
                plan.clip_norm = 1;
              }),
              HasSubstr("use early or deferred updates"));
  EXPECT_THAT(refusal([](TrainingPlan& plan) {
                plan.update = UpdateMode::kImmediate;
                plan.dtype = ComputeType::kFp16;
                plan.dynamic_loss_scale = DynamicLossScale{};
              }),
              HasSubstr("a dynamic loss scale"));
  EXPECT_THAT(refusal([](TrainingPlan& plan) {
                plan.ranks = 2;
                plan.gpu_state_share = 0.5;
              }),
              HasSubstr("--exchange collective"));
  EXPECT_THAT(refusal([](TrainingPlan& plan) { plan.strategy = Strategy::kZero3; }),
              HasSubstr("leave out rcache_blocks"));
}

}  // namespace
}  // namespace elixir::test
