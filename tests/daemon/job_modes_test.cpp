// One job in process (job_test.cpp): whatever the mode of updates, the bits of the scalar
// reference; and of early updates nothing that a rank, or another process, sees before the verdict.
//
//   ELIXIR_EVERY_CASE=1  every mode and verdict with every type, number of ranks and layout; else
//   one of 23

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "tests/daemon/job_fixture.h"
#include "tests/daemon/modes.h"
#include "tests/support/every_case.h"
#include "tests/support/sanitized.h"

namespace elixir::testing::modes {
namespace {

constexpr double kNeverClips = 1e6;

TEST(Modes, HaveTheBitsOfTheReferenceWhateverTheTypeRanksAndLayout) {
  const bool every = every_case();
  for (const Training& training : trainings(every ? 1 : kSanitized ? 139 : 47)) {
    SCOPED_TRACE(training.name());
    StartedJob world(training.options());
    expect_reference_bits(world.trainers, training);
    ASSERT_FALSE(HasFailure());
    EXPECT_TRUE(world.ports.told.empty());
  }
}

// The control of it.
TEST(Modes, HaveOtherBitsThanAReferenceThatDiffersInOneThing) {
  const Training training{.mode = {.name = "deferred"}, .layout = Layout::kGroups};
  StartedJob world(training.options());
  const FakeModel without_groups = {
      .shape = world.model.shape, .places = world.model.places, .unused = world.model.unused};
  FakeModel with_all = world.model;
  with_all.unused = {};
  Reference right(world.model), other_scale(world.model), no_groups(without_groups), all(with_all);
  world.trainers.publish(1);
  world.trainers.post(training.record(1));
  world.run_workers();
  EXPECT_FALSE(world.equals(right)) << "a step less";
  shm::StepRecord record = training.record(1);
  right.step(record);
  no_groups.step(record);
  all.step(record);
  record.grad_scale = std::nextafter(static_cast<float>(record.grad_scale), 1.0f);
  other_scale.step(record);
  EXPECT_TRUE(world.equals(right));
  EXPECT_FALSE(world.equals(other_scale));
  EXPECT_FALSE(world.equals(no_groups));
  EXPECT_FALSE(world.equals(all));
}

// ---- verdicts ----

// Without a check the gradient is applied that would have skipped the step.
TEST(Verdicts, WithoutACheckAnInfiniteGradientIsApplied) {
  FakeModel model = make_model(ComputeType::kFp32, 1, 1, 1024);
  model.poison_step = 1;
  StartedJob world({.model = model, .norms = 1});
  Reference reference(model);
  world.publish_all(1);
  world.run_workers();  // its squares are known
  world.post_all(1);
  world.run_workers();
  EXPECT_FALSE(reference.step(make_record(1, 1)).skipped);
  EXPECT_TRUE(world.equals(reference));
  EXPECT_TRUE(std::isnan(reference.masters(0)[3]));
}

TEST(Verdicts, OneTrainersGradientThatIsNotFiniteSkipsTheStep) {
  StartedJob world({.norms = 1});
  shm::StepRecord record = make_record(1, 2);
  record.clip_norm = 5;
  world.publish_all(1);
  world.post(0, record);
  record.norm.nonfinite = 1;
  world.post(1, record);
  world.run_workers();
  EXPECT_EQ(world.trainers.rank(0).step_result(1).skipped, 1u);
  EXPECT_TRUE(world.equals(Reference(world.model)));
}

TEST(Verdicts, HostileSquaresSpoilTheirOwnStepAlone) {
  StartedJob world({});
  shm::StepRecord record = make_record(1, 2);
  record.clip_norm = 1;
  for (uint64_t& limb : record.norm.limb) limb = ~uint64_t{0};
  world.publish_all(1);
  world.trainers.post(record);
  world.run_workers();
  EXPECT_GT(world.trainers.rank(0).step_result(1).grad_norm, 1e50);
  EXPECT_EQ(world.finished_step(), 1u);
  world.make_step(2);
  EXPECT_EQ(world.finished_step(), 2u);
}

TEST(Verdicts, AStepOfNoChunksIsFinishedAtOnce) {
  FakeModel model = make_model(ComputeType::kBf16, 1, 2, 1024);
  std::swap(model.shape.n_chunks, model.shape.n_gpu_chunks);
  InProcessJob world({.model = model});
  world.attach();
  for (uint32_t step = 1; step <= shm::kStepRing + 2; ++step) {
    world.post(0, step);
    EXPECT_EQ(world.finished_step(), step);
  }
}

// ---- early updates ----

constexpr uint32_t kChunks = 6;

class EarlyJob : public StartedJob {
 public:
  EarlyJob(ComputeType type, uint32_t ranks, uint32_t spare_slots)
      : EarlyJob(make_model(type, ranks, kChunks, 1024), spare_slots) {}
  EarlyJob(FakeModel model, uint32_t spare_slots)
      : StartedJob(options(std::move(model), spare_slots)), reference(this->model) {}

  void publish_and_work(const shm::StepRecord& opened) {
    trainers.open(opened);
    trainers.publish(opened.step);
    run_workers();
  }
  void post_and_compare(const shm::StepRecord& record) {
    trainers.post(record);
    run_workers();
    reference.step(record);
    const Status same = trainers.compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << record.step << ": " << same.message();
  }
  shm::UpdateResult result(uint32_t step) { return trainers.rank(0).update_result(step); }
  uint64_t update_end_ns(uint32_t chunk) {
    return trainers.rank(0).chunk_record(chunk).update_end_ns.load();
  }

  Reference reference;

 private:
  static Options options(FakeModel model, uint32_t spare_slots) {
    model.shape.n_spare_slots = spare_slots;
    return {.model = std::move(model), .norms = 1, .early = 1};
  }
};

shm::StepRecord clipped_at(double clip_norm, uint32_t step, uint32_t ranks) {
  shm::StepRecord record = make_record(step, ranks);
  record.clip_norm = clip_norm;
  return record;
}

// Chunks that move take nothing with them that another step, or another chunk, would see.
TEST(Early, ChunksThatCompleteFirstAreUpdatedBeforeThePostAndSlotsRotate) {
  EarlyJob world(ComputeType::kBf16, 2, 2);
  std::vector<uint32_t> before(kChunks);
  std::iota(before.begin(), before.end(), 0u);
  for (uint32_t step = 1; step <= 4; ++step) {
    const shm::StepRecord record = clipped_at(kNeverClips, step, 2);
    world.trainers.open(record);
    const std::set<uint32_t> first = {step % 2 == 0 ? 0 : kChunks - 1, step};
    const auto publish = [&](uint32_t chunk) {
      for (uint32_t rank = 0; rank < 2; ++rank) world.trainers.publish_chunk(rank, chunk, step);
      world.run_workers();
    };
    for (const uint32_t chunk : first) {
      const uint64_t end_ns = world.update_end_ns(chunk);
      publish(chunk);
      EXPECT_NE(world.update_end_ns(chunk), end_ns);
    }
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      if (!first.contains(chunk)) publish(chunk);
    }
    ASSERT_NO_FATAL_FAILURE(world.post_and_compare(record));
    EXPECT_EQ(world.result(step).early_chunks, 2u);
    EXPECT_EQ(world.result(step).early_hits, 2u);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const uint32_t slot = world.trainers.rank(0).chunk_record(chunk).slot.load();
      EXPECT_EQ(slot, world.trainers.rank(1).chunk_record(chunk).slot.load());
      EXPECT_EQ(first.contains(chunk), slot != before[chunk]) << chunk;
      before[chunk] = slot;
    }
    EXPECT_EQ(std::set(before.begin(), before.end()).size(), kChunks);
  }
}

// The optimizer may be told another learning rate until step(), and gradients may be dropped.
TEST(Early, OtherHyperparametersAtThePostAndGradientsThatAreMadeAgainCount) {
  EarlyJob world(ComputeType::kBf16, 2, 3);
  for (uint32_t step = 1; step <= 6; ++step) {
    const shm::StepRecord record = make_record(step, 2);
    shm::StepRecord opened = record;
    if (step % 3 == 0) opened.groups[0].lr *= 2;
    world.publish_and_work(opened);
    if (step % 3 == 1) {
      for (uint32_t rank = 0; rank < 2; ++rank) world.discard(rank);
      world.publish_and_work(opened);
    }
    ASSERT_NO_FATAL_FAILURE(world.post_and_compare(record));
    EXPECT_EQ(world.result(step).early_chunks, 3u);
    EXPECT_EQ(world.result(step).early_hits, step % 3 == 0 ? 0u : 3u) << step;
  }
}

// A rank that has posted says what the others do not yet: nothing ends for that.
TEST(Early, RanksMayChangeHyperparametersEachInItsOwnTime) {
  EarlyJob world(ComputeType::kFp32, 2, kChunks);
  for (uint32_t step = 1; step <= 4; ++step) {
    const shm::StepRecord record = make_record(step, 2);
    shm::StepRecord opened = record;
    opened.groups[0].lr *= 2;
    world.trainers.open(opened);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        world.trainers.publish_chunk(rank, chunk, step);
        world.run_workers();
      }
      world.post(rank, record);  // the first one before the second has anything
    }
    ASSERT_NO_FATAL_FAILURE(world.post_and_compare(record));
    EXPECT_TRUE(world.ports.told.empty());
  }
}

// Another rank may say until the post that a parameter has a gradient.
TEST(Early, AParameterThatGetsAGradientAfterItsChunkIsUpdatedThen) {
  bool unknown = true;
  FakeModel model = make_model(ComputeType::kBf16, 2, kChunks, 1024);
  model.unused = [&unknown](uint32_t place, uint32_t) { return unknown && place == 0; };
  EarlyJob world(model, kChunks);
  for (uint32_t step = 1; step <= 3; ++step) {
    const shm::StepRecord record = make_record(step, 2);
    unknown = true;
    world.publish_and_work(record);
    // As ranks do that hear of other nodes' gradients before they post.
    unknown = false;
    const uint32_t chunk = model.places[0].chunk;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.trainers.rank(rank).grad_groups(step)[0].store(1);
      const auto grads = fake_gradient(model, rank, chunk, step);
      world.trainers.rank(rank).fill_grad_slot(chunk, grads.data());
    }
    ASSERT_NO_FATAL_FAILURE(world.post_and_compare(record));
    EXPECT_EQ(world.result(step).early_chunks, kChunks);
    EXPECT_EQ(world.result(step).early_hits, kChunks - 1);
  }
}

// Where most steps are clipped nothing is updated twice.
TEST(Early, NoneAreMadeWhileMostStepsAreClipped) {
  EarlyJob world(ComputeType::kFp32, 1, kChunks);
  for (uint32_t step = 1; step <= 24; ++step) {
    const shm::StepRecord record = clipped_at(step <= 12 ? 1e-3 : kNeverClips, step, 1);
    world.publish_and_work(record);
    ASSERT_NO_FATAL_FAILURE(world.post_and_compare(record));
    // Of the last eight verdicts four were clipped: after the fourth, and until four more were not.
    const bool expected = step <= 4 || step > 17;
    EXPECT_EQ(world.result(step).early_chunks, expected ? kChunks : 0) << step;
    EXPECT_EQ(world.result(step).early_hits, step > 12 && expected ? kChunks : 0) << step;
  }
}

}  // namespace
}  // namespace elixir::testing::modes
