// A run that is saved, and one that goes on from there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "shm/shape.h"
#include "tests/client/saved_states.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

constexpr int64_t kSavedAt = 7, kSteps = 27;

class Resume : public WithElixird {};

// Saves after step `at`, and waits when the run is `wait` steps further.
auto saves_into(const std::string& folder, uint64_t at, uint64_t wait = 3) {
  auto savings = std::make_shared<std::vector<std::optional<Saving>>>(8);
  return [=](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
    std::optional<Saving>& saving = (*savings)[rank];
    if (steps == at) saving.emplace(optimizer.save(folder));
    if (steps != at + wait) return;
    const SaveReport report = saving->wait();
    EXPECT_EQ(report.step, at);
    EXPECT_EQ(report.path, folder);
    EXPECT_GT(report.bytes, 0u);
    EXPECT_TRUE(saving->done());
    EXPECT_EQ(saving->progress(), 1);
  };
}

TrainingPlan plan_of(ComputeType type, double gpu_state_share) {
  TrainingPlan plan;
  plan.dtype = type;
  plan.steps = kSteps;
  plan.gpu_state_share = gpu_state_share;
  plan.chunk_numel = 2 * largest_parameter_numel();
  plan.rcache_blocks = 2;
  plan.biases_apart = true;
  if (type != ComputeType::kFp16) return plan;
  plan.dynamic_loss_scale = DynamicLossScale{.init_scale = 4096, .growth_interval = 5};
  plan.overflows = [](uint32_t, int64_t step) { return step == 5 || step == 11; };
  return plan;
}

struct ResumeCase {
  ComputeType type;
  double saved_share, resumed_share;
};

class ResumedRun : public Resume, public ::testing::WithParamInterface<ResumeCase> {};

TEST_P(ResumedRun, HasTheBitsOfAnUndisturbedOneAndSavingChangesNone) {
  const ResumeCase of = GetParam();
  const TemporaryFolder folder;
  const std::string saved = folder.path("step-000000007");
  TrainingPlan plan = plan_of(of.type, of.saved_share);
  const TrainingOutcome undisturbed = train_through_elixird(plan);
  plan.looks = saves_into(saved, kSavedAt);
  expect_equal_bits(train_through_elixird(plan), undisturbed);
  ASSERT_TRUE(is_checkpoint(saved));

  plan = plan_of(of.type, of.resumed_share);
  plan.chunk_numel = 3 * largest_parameter_numel();
  plan.rcache_blocks = 3;
  plan.workers = 1;
  plan.load_from = saved;
  plan.looks = [](Optimizer& optimizer, uint32_t, uint64_t steps) {
    ASSERT_TRUE(optimizer.loaded().has_value());
    EXPECT_EQ(optimizer.loaded()->step, static_cast<uint64_t>(kSavedAt));
    EXPECT_EQ(optimizer.loaded()->ranks, 1u);
    EXPECT_TRUE(optimizer.loaded()->has_states);
    EXPECT_GE(steps, static_cast<uint64_t>(kSavedAt));
  };
  const TrainingOutcome resumed = train_through_elixird(plan);
  expect_equal_weights(resumed, undisturbed);
  ASSERT_EQ(resumed.losses.size(), static_cast<size_t>(kSteps - kSavedAt));
  for (size_t i = 0; i < resumed.losses.size(); ++i) {
    EXPECT_EQ(resumed.losses[i], undisturbed.losses[kSavedAt + i]) << i;
    EXPECT_EQ(resumed.loss_scales[i], undisturbed.loss_scales[kSavedAt + i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ResumedRun,
                         ::testing::Values(ResumeCase{ComputeType::kFp32, 0, 0},
                                           ResumeCase{ComputeType::kBf16, 0, 0},
                                           ResumeCase{ComputeType::kFp16, 0, 0},
                                           ResumeCase{ComputeType::kFp32, 1, 0},
                                           ResumeCase{ComputeType::kBf16, 0.5, 1},
                                           ResumeCase{ComputeType::kBf16, 0, 0.5},
                                           ResumeCase{ComputeType::kFp16, 1, 0.5}),
                         [](const auto& of) {
                           return std::string(compute_type_name(of.param.type)) + "_" +
                                  std::to_string(static_cast<int>(of.param.saved_share * 100)) +
                                  "_" +
                                  std::to_string(static_cast<int>(of.param.resumed_share * 100));
                         });

// The negative control: a run that goes on without its states is another one.
TEST_F(Resume, WithoutStatesTheRunBeginsAnew) {
  const TemporaryFolder folder;
  const std::string saved = folder.path("model");
  TrainingPlan plan = plan_of(ComputeType::kFp32, 0);
  plan.looks = saves_into(saved, kSavedAt);
  const TrainingOutcome undisturbed = train_through_elixird(plan);
  plan.looks = nullptr;
  plan.load_from = saved;
  plan.load_states = false;
  const TrainingOutcome anew = train_through_elixird(plan);
  EXPECT_EQ(anew.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_NE(anew.weights_xxh64, undisturbed.weights_xxh64);
}

// What ranks see before their first step and after it.
struct Seen {
  std::atomic<uint64_t> states{0}, weights{0};
};

std::function<void(Optimizer&, uint32_t, uint64_t)> looks_at(uint64_t at, Seen& seen) {
  return [&seen, at](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
    if (steps != at) return;
    const uint64_t states = xxh64_of(optimizer.state_dict());
    const uint64_t weights = optimizer.weights_xxh64();
    if (rank != 0) return;
    seen.states = states;
    seen.weights = weights;
  };
}

struct Layout {
  uint32_t ranks;
  shm::Exchange exchange;
  double gpu_state_share = 0;
  ComputeType type = ComputeType::kBf16;
};

TrainingPlan small_plan(const Layout& layout) {
  TrainingPlan plan;
  plan.ranks = layout.ranks;
  plan.batch = 1;
  plan.dtype = layout.type;
  plan.exchange = layout.exchange;
  plan.gpu_state_share = layout.gpu_state_share;
  plan.steps = 2;
  // Other lengths for other numbers of ranks, shards that end in the midst of parameters.
  plan.chunk_numel = largest_parameter_numel() + 128 * layout.ranks * 5;
  plan.rcache_blocks = 2;
  return plan;
}

// Saves with one layout after two steps, returns what it had.
void save_with(const Layout& layout, const std::string& folder, Seen& seen) {
  TrainingPlan plan = small_plan(layout);
  const auto looks = looks_at(2, seen);
  plan.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
    looks(optimizer, rank, steps);
    if (steps == 2) optimizer.save(folder).wait();
  };
  train_through_elixird(plan);
}

void expect_loaded_with(const Layout& layout, const std::string& folder, const Seen& saved) {
  SCOPED_TRACE(fmt::format("{} ranks, {} exchange, {} on the GPU", layout.ranks,
                           shm::exchange_name(layout.exchange), layout.gpu_state_share));
  TrainingPlan plan = small_plan(layout);
  Seen seen;
  plan.load_from = folder;
  plan.looks = looks_at(2, seen);
  train_through_elixird(plan);
  EXPECT_EQ(seen.weights, saved.weights);
  EXPECT_EQ(seen.states, saved.states);
}

TEST_F(Resume, AnyNumberOfRanksLoadsWhatAnyOtherSaved) {
  const shm::Exchange host = shm::Exchange::kHost;
  for (uint32_t from = 1; from <= 4; ++from) {
    const TemporaryFolder folder;
    Seen saved;
    save_with({from, host}, folder.path("model"), saved);
    for (uint32_t to = 1; to <= 4; ++to) {
      SCOPED_TRACE(fmt::format("from {} ranks", from));
      expect_loaded_with({to, host}, folder.path("model"), saved);
    }
  }
}

TEST_F(Resume, AnyExchangeAndPlacementLoadsWhatAnyOtherSaved) {
  const shm::Exchange host = shm::Exchange::kHost, collective = shm::Exchange::kCollective;
  const std::vector<std::vector<Layout>> from_and_to = {
      {{2, collective}, {1, host}, {3, collective, 1}, {2, collective, 0.5}},
      {{1, collective, 1}, {2, collective}, {2, host}},
      {{2, collective, 0.5}, {1, host, 1}, {2, host}, {1, collective}}};
  for (const std::vector<Layout>& layouts : from_and_to) {
    const TemporaryFolder folder;
    Seen saved;
    save_with(layouts[0], folder.path("model"), saved);
    for (size_t i = 1; i < layouts.size(); ++i) {
      expect_loaded_with(layouts[i], folder.path("model"), saved);
    }
  }
}

// FP32 masters are whole in any type's files, so that a run may go on in another type.
TEST_F(Resume, AnyTypeLoadsTheMastersThatAnyOtherSaved) {
  const ComputeType types[] = {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16};
  for (const ComputeType from : types) {
    const TemporaryFolder folder;
    Seen saved;
    TrainingPlan plan = plan_of(from, 0);
    plan.steps = 2;
    const auto looks = looks_at(2, saved);
    plan.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t steps) {
      looks(optimizer, rank, steps);
      if (steps == 2) optimizer.save(folder.path("model")).wait();
    };
    train_through_elixird(plan);
    for (const ComputeType to : types) {
      SCOPED_TRACE(fmt::format("{} from {}", compute_type_name(to), compute_type_name(from)));
      for (const double share : {0.0, 1.0}) {
        TrainingPlan other = plan_of(to, share);
        other.steps = 2;
        other.load_from = folder.path("model");
        Seen seen;
        other.looks = looks_at(2, seen);
        train_through_elixird(other);
        EXPECT_EQ(seen.states, saved.states) << share;
      }
    }
  }
}

}  // namespace
}  // namespace elixir::test
