// Swing chunks through a real elixird and torch: the bits of a run without them, whatever the
// exchange, the verdicts, the update's mode and what is frozen, and in a folder.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/compute_type_names.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

class SwingTraining : public WithElixird {};

enum class Way : uint8_t { kPlain, kClippedEarly, kAccumulatingSync, kFrozenOverflowing };

TrainingPlan plan_of(uint32_t ranks, shm::Exchange exchange, ComputeType dtype, Way way) {
  TrainingPlan plan;
  plan.ranks = ranks;
  plan.exchange = exchange;
  plan.dtype = dtype;
  plan.batch = 2;
  plan.steps = 6;
  plan.chunk_numel = largest_parameter_numel();
  plan.rcache_blocks = 3;
  if (way == Way::kClippedEarly) plan.clip_norm = 0.3;  // some steps, not all
  if (way == Way::kAccumulatingSync) {
    plan.accumulate = 3;
    plan.declares = ranks == 1;
  }
  if (way == Way::kFrozenOverflowing) plan.freezes = "h.0.";
  if (dtype == ComputeType::kFp16) plan.loss_scale = 256;
  if (way == Way::kFrozenOverflowing && dtype == ComputeType::kFp16) {
    plan.loss_scale = 1;
    plan.dynamic_loss_scale = DynamicLossScale{.init_scale = 256, .growth_interval = 3};
    plan.overflows = [](uint32_t rank, int64_t step) { return rank == 0 && step == 3; };
  }
  return plan;
}

void swing(Way way, TrainingPlan* plan) {
  constexpr uint32_t kStrides[] = {2, 3, 1, 2};
  plan->swing_stride = kStrides[static_cast<size_t>(way)];
  if (way == Way::kAccumulatingSync) plan->update = UpdateMode::kSync;
  if (way != Way::kClippedEarly) return;
  plan->update = UpdateMode::kEarly;
  plan->spare_slots = 2;
}

TEST_F(SwingTraining, ChangesNoBit) {
  constexpr shm::Exchange kHost = shm::Exchange::kHost, kCollective = shm::Exchange::kCollective;
  const std::pair<uint32_t, shm::Exchange> ranks[] = {
      {1, kHost}, {2, kHost}, {2, kCollective}, {3, kHost}, {3, kCollective}};
  uint32_t swings = 0;
  for (const auto& [n, exchange] : ranks) {
    for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
      for (const Way way :
           {Way::kPlain, Way::kClippedEarly, Way::kAccumulatingSync, Way::kFrozenOverflowing}) {
        SCOPED_TRACE(fmt::format("{} ranks, exchange {}, {}, way {}", n, static_cast<int>(exchange),
                                 compute_type_name(dtype), static_cast<int>(way)));
        TrainingPlan plan = plan_of(n, exchange, dtype, way);
        const TrainingOutcome without = train_through_elixird(plan);
        EXPECT_EQ(without.plan.n_swing_chunks, 0u);
        swing(way, &plan);
        const TrainingOutcome outcome = train_through_elixird(plan);
        EXPECT_GT(outcome.plan.n_swing_chunks, 0u);
        EXPECT_EQ(outcome.skipped, without.skipped);
        expect_equal_bits(outcome, without);
        swings += outcome.plan.n_swing_chunks;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(swings, 60u);
}

// Written while they swing, read with another stride and without any.
TEST_F(SwingTraining, FoldersHaveTheirStates) {
  const TemporaryFolder folder;
  TrainingPlan plan = plan_of(2, shm::Exchange::kHost, ComputeType::kBf16, Way::kPlain);
  plan.swing_stride = 2;
  const std::string saved = folder.path("step-000000003");
  std::vector<std::optional<Saving>> savings(plan.ranks);
  plan.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
    if (steps == 3) savings[rank].emplace(optimizer.save(saved));
    if (steps == 5) EXPECT_EQ(savings[rank]->wait().step, 3u);
  };
  const TrainingOutcome whole = train_through_elixird(plan);
  plan.looks = nullptr;
  plan.load_from = saved;
  for (const uint32_t stride : {0u, 1u, 3u}) {
    plan.swing_stride = stride;
    expect_equal_weights(train_through_elixird(plan), whole);
  }
}

}  // namespace
}  // namespace elixir::test
