// Early updates through a real elixird and torch: the bits of synchronous ones, whatever the
// verdicts, the exchange, the number of slots and what is frozen.
//
//   ELIXIR_EVERY_CASE=1  all 720 cases; else 60, in which every value meets every rank, exchange,
//                        type and clipping

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/compute_type_names.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

using ::testing::NanSensitiveDoubleEq;
using ::testing::Pointwise;

class EarlyUpdates : public WithElixird {};

// In which steps gradients are clipped.
enum class Clips : uint8_t { kNotAsked, kNever, kSometimes, kAlways };

struct Case {
  uint32_t ranks;
  shm::Exchange exchange;
  ComputeType dtype;
  Clips clips;
  uint32_t slots;  // 0: a third of the chunks, 1, or UINT32_MAX: all
  uint32_t accumulate;
  bool frozen;
};

std::vector<Case> cases() {
  constexpr shm::Exchange kHost = shm::Exchange::kHost, kCollective = shm::Exchange::kCollective;
  const std::pair<uint32_t, shm::Exchange> ranks[] = {
      {1, kHost}, {2, kHost}, {2, kCollective}, {3, kHost}, {3, kCollective}};
  const bool every = std::getenv("ELIXIR_EVERY_CASE") != nullptr;
  std::vector<Case> all;
  uint32_t number = 0;
  for (const auto& [n, exchange] : ranks) {
    for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
      for (uint32_t clips = 0; clips < 4; ++clips, ++number) {
        for (uint32_t rest = 0; rest < 12; ++rest) {
          if (!every && rest != (5 * number + number / 12) % 12) continue;
          constexpr uint32_t kSlots[] = {0, 1, UINT32_MAX};
          all.push_back({n, exchange, dtype, static_cast<Clips>(clips), kSlots[rest % 3],
                         rest / 3 % 2 == 0 ? 1u : 3u, rest >= 6});
        }
      }
    }
  }
  return all;
}

TrainingPlan plan_of(const Case& of) {
  TrainingPlan plan;
  plan.ranks = of.ranks;
  plan.exchange = of.exchange;
  plan.dtype = of.dtype;
  plan.accumulate = of.accumulate;
  plan.batch = 2;
  plan.steps = 8;
  plan.chunk_numel = largest_parameter_numel();
  plan.rcache_blocks = 3;
  if (of.frozen) plan.freezes = "h.0.";
  if (of.dtype == ComputeType::kFp16) {
    // Grows once, and overflows once: on one rank.
    plan.dynamic_loss_scale = DynamicLossScale{.init_scale = 256, .growth_interval = 3};
    plan.overflows = [](uint32_t rank, int64_t step) { return rank == 0 && step == 5; };
  }
  return plan;
}

void clip(Clips clips, TrainingPlan* plan) {
  switch (clips) {
    case Clips::kNotAsked:
      return;
    case Clips::kNever:
      plan->clip_norm = 1e6;
      return;
    case Clips::kAlways:
      plan->clip_norm = 1e-3;
      return;
    case Clips::kSometimes:
      plan->clip_norm = 1e6;
      std::vector<double> norms = train_through_elixird(*plan).grad_norms;
      std::sort(norms.begin(), norms.end());
      plan->clip_norm = norms[norms.size() / 2];
      return;
  }
}

TEST_F(EarlyUpdates, HaveTheBitsOfSynchronousAndDeferredOnes) {
  uint64_t made = 0, hits = 0, never_made = 0, never_hits = 0;
  for (const Case& of : cases()) {
    SCOPED_TRACE(fmt::format("{} ranks, exchange {}, {}, clips {}, {} slots, accumulate {}, {}",
                             of.ranks, static_cast<int>(of.exchange), compute_type_name(of.dtype),
                             static_cast<int>(of.clips), of.slots, of.accumulate,
                             of.frozen ? "a block frozen" : "all trained"));
    TrainingPlan plan = plan_of(of);
    plan.update = UpdateMode::kSync;
    clip(of.clips, &plan);
    const TrainingOutcome sync = train_through_elixird(plan);
    plan.update = UpdateMode::kDeferred;
    if (of.slots == 1) expect_equal_bits(train_through_elixird(plan), sync);
    plan.update = UpdateMode::kEarly;
    plan.spare_slots = of.slots == 0 ? (sync.plan.n_chunks + 2) / 3 : of.slots;
    uint64_t made_here = 0, hits_here = 0;
    plan.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t) {
      if (rank != 0) return;
      optimizer.synchronize();
      made_here += optimizer.stats().early_chunks;
      hits_here += optimizer.stats().early_hits;
    };
    const TrainingOutcome early = train_through_elixird(plan);
    expect_equal_bits(early, sync);
    if (of.clips != Clips::kNotAsked) {
      EXPECT_THAT(early.grad_norms, Pointwise(NanSensitiveDoubleEq(), sync.grad_norms));
    }
    EXPECT_EQ(early.loss_scales, sync.loss_scales);
    EXPECT_EQ(early.skipped, sync.skipped);
    if (of.clips == Clips::kSometimes) {
      const auto clipped = std::count_if(sync.grad_norms.begin(), sync.grad_norms.end(),
                                         [&](double norm) { return norm > *plan.clip_norm; });
      EXPECT_GT(clipped, 0);
      EXPECT_LT(clipped, plan.steps - 1);
    }
    EXPECT_EQ(early.plan.update, UpdateMode::kEarly);
    EXPECT_EQ(early.plan.spare_slots, std::min(*plan.spare_slots, early.plan.n_chunks));
    if (of.clips == Clips::kNever && of.dtype != ComputeType::kFp16) {
      never_made += made_here;
      never_hits += hits_here;
    }
    made += made_here;
    hits += hits_here;
  }
  EXPECT_GT(made, 0u);
  EXPECT_GT(hits, 0u);
  EXPECT_LT(hits, made) << "clipping has dropped none";
  EXPECT_GT(never_made, 0u);
  EXPECT_EQ(never_hits, never_made) << "where nothing is clipped";
}

// What a step's first backward pass has told elixird may be others by its second.
TEST_F(EarlyUpdates, GroupsMayBeAddedWhereGradientsWereDropped) {
  const auto weights_after = [](UpdateMode update) {
    torch::nn::Linear first(16, 16), second(16, 16);
    torch::nn::Sequential model(first, second);
    Options runtime;
    runtime.layout.chunk_numel = 272;
    runtime.update = update;
    runtime.environment = LaunchEnvironment{
        0, 1, 0, 1, fmt::format("groups-{}", static_cast<int>(update)), "test", "127.0.0.1", 0};
    torch::manual_seed(7);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.fill_(0.05);
    const at::AutoGradMode grad(true);
    AdamW optimizer(*model, {}, runtime);
    const auto backward = [&] { model->forward(at::ones({2, 16})).sum().backward(); };
    for (int step = 0; step < 3; ++step) {
      backward();
      if (step == 1) {
        optimizer.zero_grad();
        optimizer.add_param_group({{second->weight}, 0.5});
        backward();
      }
      optimizer.step();
    }
    return optimizer.weights_xxh64();
  };
  EXPECT_EQ(weights_after(UpdateMode::kEarly), weights_after(UpdateMode::kDeferred));
}

}  // namespace
}  // namespace elixir::test
