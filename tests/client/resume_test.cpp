// A run that is saved, and those that go on from there.

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "shm/shape.h"
#include "tests/client/saved_states.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

constexpr ComputeType kFp32 = ComputeType::kFp32, kBf16 = ComputeType::kBf16,
                      kFp16 = ComputeType::kFp16;
constexpr shm::Exchange kHost = shm::Exchange::kHost, kCollective = shm::Exchange::kCollective;
constexpr uint64_t kSavedAt = 7;
constexpr int64_t kSteps = 17;

class Resume : public WithElixird {};

struct Layout {
  ComputeType type;
  uint32_t ranks = 1;
  shm::Exchange exchange = kHost;
  double gpu_state_share = 0;
  uint32_t swing_stride = 0;
};

// Shards that end in the midst of parameters, elsewhere for other numbers of ranks.
TrainingPlan plan_of(const Layout& layout) {
  TrainingPlan plan;
  plan.dtype = layout.type;
  plan.ranks = layout.ranks;
  plan.batch = 2;
  plan.steps = kSteps;
  plan.exchange = layout.exchange;
  plan.gpu_state_share = layout.gpu_state_share;
  plan.swing_stride = layout.swing_stride;
  plan.chunk_numel = largest_parameter_numel() + uint64_t{128} * layout.ranks * 5;
  plan.rcache_blocks = 2;
  plan.some_apart = true;
  if (layout.type != kFp16) return plan;
  plan.dynamic_loss_scale = DynamicLossScale{.init_scale = 4096, .growth_interval = 5};
  plan.factor = [](uint32_t, int64_t step) {
    return step == 5 || step == 11 ? std::numeric_limits<double>::infinity() : 1;
  };
  return plan;
}

// States and weights after the step that is saved, or before the first one that is made from there.
// They are rank 0's; all ranks give the same.
struct Seen {
  std::atomic<uint64_t> states{0}, states_in_bf16{0}, weights{0};
  void look(Optimizer& optimizer, uint32_t rank) {
    const auto all_states = optimizer.state_dict();
    const uint64_t all_weights = optimizer.weights_xxh64();
    if (rank != 0) return;
    states = xxh64_of(all_states);
    states_in_bf16 = xxh64_of(all_states, true);
    weights = all_weights;
  }
};

// Saves after kSavedAt, and waits when the run is some steps further.
TrainingOutcome train_and_save(TrainingPlan plan, const std::string& folder, Seen* seen) {
  std::vector<std::optional<Saving>> savings(plan.ranks);
  plan.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
    if (steps == kSavedAt) {
      savings[rank].emplace(optimizer.save(folder));
      seen->look(optimizer, rank);
    }
    if (steps != kSavedAt + 3) return;
    const SaveReport report = savings[rank]->wait();
    EXPECT_EQ(report.step, kSavedAt);
    EXPECT_EQ(report.path, folder);
    EXPECT_GT(report.bytes, 0u);
    EXPECT_TRUE(savings[rank]->done());
    EXPECT_EQ(savings[rank]->progress(), 1);
  };
  return train_through_elixird(plan);
}

TrainingOutcome train_from(const std::string& folder, TrainingPlan plan, uint32_t saved_ranks,
                           Seen* seen) {
  plan.load_from = folder;
  plan.chunk_numel += largest_parameter_numel();
  plan.workers = 1;
  plan.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
    if (steps == kSavedAt) seen->look(optimizer, rank);
    ASSERT_TRUE(optimizer.loaded().has_value());
    EXPECT_EQ(optimizer.loaded()->step, kSavedAt);
    EXPECT_EQ(optimizer.loaded()->ranks, saved_ranks);
    EXPECT_TRUE(optimizer.loaded()->has_states);
    EXPECT_GE(steps, kSavedAt);
  };
  return train_through_elixird(plan);
}

struct ResumeCase {
  Layout saved;
  std::vector<Layout> resumed;
};

const std::vector<ResumeCase> kCases = {
    {{kFp32},
     {{kFp32}, {kFp32, 1, kHost, 0.5}, {kFp32, 2}, {kFp32, 3}, {kBf16}, {kFp16, 1, kHost, 1}}},
    {{kBf16, 1, kHost, 0.5},
     {{kBf16}, {kBf16, 1, kHost, 1}, {kBf16, 4}, {kFp32, 1, kHost, 1}, {kFp16}}},
    {{kFp16, 1, kHost, 1},
     {{kFp16}, {kFp16, 1, kHost, 0.5}, {kFp32}, {kBf16, 1, kHost, 1}, {kFp16, 2, kCollective}}},
    {{kBf16, 2, kHost, 0, 2},
     {{kBf16, 2}, {kBf16, 2, kHost, 0, 1}, {kBf16, 2, kHost, 0, 3}, {kBf16, 2, kCollective}}},
    {{kBf16, 2, kCollective}, {{kBf16}, {kBf16, 3, kCollective, 1}, {kBf16, 2, kCollective, 0.5}}},
    {{kFp32, 3}, {{kFp32}, {kFp32, 2}, {kFp32, 3, kCollective, 1}, {kFp32, 4}}},
    {{kFp32, 4, kCollective, 0.5}, {{kFp32, 1, kHost, 1}, {kFp32, 4}, {kFp32, 1, kCollective}}}};

// Another type, other rows or rounded sums make another run.
bool computes_as(const Layout& a, const Layout& b) {
  const bool as_exact = a.type == kFp32 || a.exchange == b.exchange;
  return a.type == b.type && a.ranks == b.ranks && as_exact;
}

void expect_same_from_then_on(const TrainingOutcome& resumed, const TrainingOutcome& whole) {
  expect_equal_weights(resumed, whole);
  ASSERT_EQ(resumed.losses.size(), kSteps - kSavedAt);
  for (size_t i = 0; i < resumed.losses.size(); ++i) {
    EXPECT_EQ(resumed.losses[i], whole.losses[kSavedAt + i]) << i;
    EXPECT_EQ(resumed.loss_scales[i], whole.loss_scales[kSavedAt + i]) << i;
  }
}

// FP32 masters are whole in any type's files, so a run can resume in another type. A BF16 run sets
// the last bit of a master that is a tie of BF16. FP32 and FP16 runs have such masters by chance,
// and the processor's matrix products decide which.
TEST_F(Resume, AnyLayoutHasTheBitsThatAnyOtherSavedAndSavingChangesNone) {
  for (const auto& [saved, resumed] : kCases) {
    SCOPED_TRACE(fmt::format("saved in {} by {} ranks, {} exchange, {} on the device",
                             compute_type_name(saved.type), saved.ranks,
                             shm::exchange_name(saved.exchange), saved.gpu_state_share));
    const TemporaryFolder folder;
    const std::string path = folder.path("step-000000007");
    Seen before;
    const TrainingOutcome whole = train_through_elixird(plan_of(saved));
    expect_equal_bits(train_and_save(plan_of(saved), path, &before), whole);
    ASSERT_TRUE(is_checkpoint(path));
    for (const Layout& layout : resumed) {
      SCOPED_TRACE(fmt::format("{}, {} ranks, {} exchange, {} on the device, stride {}",
                               compute_type_name(layout.type), layout.ranks,
                               shm::exchange_name(layout.exchange), layout.gpu_state_share,
                               layout.swing_stride));
      Seen after;
      const TrainingOutcome outcome = train_from(path, plan_of(layout), saved.ranks, &after);
      if (layout.type == kBf16) {
        EXPECT_EQ(after.states, before.states_in_bf16);
      } else {
        EXPECT_EQ(after.states, before.states);
      }
      if (layout.type != kBf16 || saved.type == kBf16) EXPECT_EQ(after.weights, before.weights);
      if (computes_as(layout, saved)) expect_same_from_then_on(outcome, whole);
    }
  }
}

// The negative control: a run that goes on without its states is another one.
TEST_F(Resume, WithoutStatesTheRunBeginsAnew) {
  const TemporaryFolder folder;
  TrainingPlan plan = plan_of({kFp32});
  Seen seen;
  const TrainingOutcome whole = train_and_save(plan, folder.path("model"), &seen);
  plan.load_from = folder.path("model");
  plan.load_states = false;
  const TrainingOutcome anew = train_through_elixird(plan);
  EXPECT_EQ(anew.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_NE(anew.weights_xxh64, whole.weights_xxh64);
}

}  // namespace
}  // namespace elixir::test
