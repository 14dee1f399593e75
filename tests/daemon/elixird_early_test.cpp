// Early updates through a real elixird, against the scalar reference: whatever the verdict, the
// bits of deferred ones, and before it nothing that a rank, or another process, sees of them.

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <thread>

#include "tests/daemon/gradients_fixture.h"
#include "tests/support/sanitized.h"

namespace elixir::testing::early {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;
constexpr uint32_t kChunks = 6;

struct Case {
  ComputeType type;
  uint32_t ranks, spare_slots, accumulate;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
    for (const uint32_t ranks : {1u, 2u, 3u}) {
      for (const uint32_t spare : {1u, 2u, kChunks}) {
        for (const uint32_t accumulate : {1u, 3u}) all.push_back({type, ranks, spare, accumulate});
      }
    }
  }
  if (!kSanitized) return all;
  std::vector<Case> some;
  for (size_t i = 0; i < all.size(); i += 5) some.push_back(all[i]);
  return some;
}

class Early : public Gradients {
 protected:
  static FakeModel model_of(const Case& of) {
    FakeModel model = make_model(of.type, of.ranks, kChunks, kChunkNumel);
    model.shape.n_spare_slots = of.spare_slots;
    return model;
  }
  // All rounds of a step, opened with `opened`.
  static void publish(FakeJob& job, const shm::StepRecord& opened, uint32_t rounds) {
    for (auto& rank : job.ranks()) rank->open(opened);
    for (uint32_t round = 1; round <= rounds; ++round) {
      if (round > 1) {
        ASSERT_TRUE(job.wait_taken().ok());
      }
      job.publish(opened.step, round);
    }
  }
  static void publish_chunk(FakeJob& job, const FakeModel& model, uint32_t chunk, uint32_t step) {
    for (uint32_t rank = 0; rank < job.ranks().size(); ++rank) {
      const auto grads = fake_gradient(model, rank, chunk, step, /*round=*/1);
      job.rank(rank).write_grads(chunk, grads.data(), step, /*round=*/1);
      job.rank(rank).ring_grads(chunk);
    }
  }
  // publish() of one round, and elixird has made `n` early updates of it.
  static void publish_and_wait(FakeJob& job, const shm::StepRecord& opened, uint32_t n) {
    const std::vector<uint64_t> before = ends(job);
    ASSERT_NO_FATAL_FAILURE(publish(job, opened, 1));
    EXPECT_TRUE(becomes_true([&] {
      const std::vector<uint64_t> now = ends(job);
      uint32_t made = 0;
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) made += now[chunk] != before[chunk];
      return made >= n;
    })) << n
        << " early updates in step " << opened.step;
  }

 private:
  static std::vector<uint64_t> ends(FakeJob& job) {
    std::vector<uint64_t> all;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      all.push_back(job.rank(0).chunk_record(chunk).update_end_ns.load());
    }
    return all;
  }
};

// No clipping; one that never, sometimes and always clips; a step with a gradient that is not
// finite.
TEST_F(Early, UpdatesHaveTheBitsOfDeferredOnesWhateverTheVerdict) {
  for (const Case& of : cases()) {
    for (const double clip : {0.0, 1e6, 1.0, 1e-3}) {
      FakeModel model = model_of(of);
      if (clip > 0) model.poison_step = 5;
      auto job = start(
          {.model = model, .accumulate = of.accumulate, .norms = clip > 0 ? 1u : 0u, .early = 1});
      Reference reference(model);
      for (uint32_t step = 1; step <= 12; ++step) {
        shm::StepRecord record = make_record(step, of.ranks);
        // Clips every other step.
        if (clip > 0) record.clip_norm = clip == 1.0 ? (step % 2 == 0 ? 1e-3 : 1e6) : clip;
        ASSERT_NO_FATAL_FAILURE(publish(*job, record, of.accumulate));
        job->post(record);
        ASSERT_TRUE(job->wait_finished(step).ok());
        const optim::Verdict verdict = reference.step(record, of.accumulate);
        expect_verdict(*job, step, verdict, reference.applied());
        const Status same = job->compare(reference);
        ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
        const shm::UpdateResult result = job->rank(0).update_result(step);
        EXPECT_LE(result.early_hits, result.early_chunks);
        EXPECT_LE(result.early_chunks, of.spare_slots);
      }
      leave(*job);
    }
  }
}

// Chunks that move take nothing with them that another step, or another chunk, would see.
TEST_F(Early, ChunksThatCompleteFirstAreUpdatedBeforeThePostAndSlotsRotate) {
  const FakeModel model = model_of({ComputeType::kBf16, 2, 2, 1});
  auto job = start({.model = model, .norms = 1, .early = 1});
  std::vector<uint32_t> before(kChunks);
  std::iota(before.begin(), before.end(), 0u);
  for (uint32_t step = 1; step <= 4; ++step) {
    shm::StepRecord record = make_record(step, 2);
    record.clip_norm = 1e6;
    for (auto& rank : job->ranks()) rank->open(record);
    const uint32_t first = step % 2 == 0 ? 0 : kChunks - 1, second = step;
    for (const uint32_t chunk : {first, second}) {
      const uint64_t end = job->rank(0).chunk_record(chunk).update_end_ns.load();
      publish_chunk(*job, model, chunk, step);
      EXPECT_TRUE(becomes_true(
          [&] { return job->rank(0).chunk_record(chunk).update_end_ns.load() != end; }));
    }
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk != first && chunk != second) publish_chunk(*job, model, chunk, step);
    }
    job->post(record);
    ASSERT_TRUE(job->wait_finished(step).ok());
    EXPECT_EQ(job->rank(0).update_result(step).early_chunks, 2u);
    EXPECT_EQ(job->rank(0).update_result(step).early_hits, 2u);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const uint32_t slot = job->rank(0).chunk_record(chunk).slot.load();
      EXPECT_EQ(slot, job->rank(1).chunk_record(chunk).slot.load());
      EXPECT_EQ(chunk == first || chunk == second, slot != before[chunk]) << chunk;
      before[chunk] = slot;
    }
    EXPECT_EQ(std::set(before.begin(), before.end()).size(), kChunks);
  }
  leave(*job);
}

// The weights and states of the last step stay readable, and are what they were, until the post.
TEST_F(Early, NothingIsSeenOfThemBeforeTheVerdict) {
  const FakeModel model = model_of({ComputeType::kBf16, 1, kChunks, 1});
  auto job = start({.model = model, .norms = 1, .early = 1});
  Reference reference(model);
  for (uint32_t step = 1; step <= 5; ++step) {
    shm::StepRecord record = make_record(step, 1);
    record.clip_norm = 1e6;
    ASSERT_NO_FATAL_FAILURE(publish_and_wait(*job, record, kChunks));
    const Status old = job->compare(reference);
    EXPECT_TRUE(old.ok()) << "step " << step << ": " << old.message();
    EXPECT_EQ(job->rank(0).param_step(0), step - 1);
    job->post(record);
    ASSERT_TRUE(job->wait_finished(step).ok());
    reference.step(record);
    EXPECT_TRUE(job->compare(reference).ok());
  }
  leave(*job);
}

// The optimizer may be told another learning rate until step(), and gradients may be dropped.
TEST_F(Early, OtherHyperparametersAtThePostAndGradientsThatAreMadeAgainCount) {
  const FakeModel model = model_of({ComputeType::kBf16, 2, 3, 1});
  auto job = start({.model = model, .early = 1});
  Reference reference(model);
  for (uint32_t step = 1; step <= 6; ++step) {
    shm::StepRecord record = make_record(step, 2);
    shm::StepRecord opened = record;
    if (step % 3 == 0) opened.groups[0].lr *= 2;
    ASSERT_NO_FATAL_FAILURE(publish_and_wait(*job, opened, 3));
    if (step % 3 == 1) {
      for (auto& rank : job->ranks()) rank->discard();
      ASSERT_NO_FATAL_FAILURE(publish_and_wait(*job, opened, 3));
    }
    job->post(record);
    ASSERT_TRUE(job->wait_finished(step).ok());
    reference.step(record);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
    EXPECT_EQ(job->rank(0).update_result(step).early_hits, step % 3 == 0 ? 0u : 3u) << step;
  }
  leave(*job);
}

// A rank that has posted says what the others do not yet: nothing ends for that.
TEST_F(Early, RanksMayChangeHyperparametersEachInItsOwnTime) {
  const FakeModel model = model_of({ComputeType::kFp32, 2, kChunks, 1});
  auto job = start({.model = model, .norms = 1, .early = 1});
  Reference reference(model);
  for (uint32_t step = 1; step <= 4; ++step) {
    shm::StepRecord record = make_record(step, 2);
    record.clip_norm = 1e6;
    shm::StepRecord opened = record;
    opened.groups[0].lr *= 2;
    for (auto& rank : job->ranks()) rank->open(opened);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const auto grads = fake_gradient(model, rank, chunk, step);
        job->rank(rank).write_grads(chunk, grads.data(), step);
        job->rank(rank).ring_grads(chunk);
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      job->rank(rank).post(record);  // the first one long before the second has anything
    }
    ASSERT_TRUE(job->wait_finished(step).ok());
    reference.step(record);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
  }
  leave(*job);
}

// They move with their chunk as they are.
TEST_F(Early, ParametersWithoutAGradientStayAsTheyAreAndGroupsHaveTheirOwn) {
  FakeModel model = model_of({ComputeType::kFp16, 2, kChunks, 1});
  model.unused = [](uint32_t place, uint32_t step) { return (place + step) % 3 == 0; };
  for (uint32_t i = 0; i < model.places.size(); ++i) model.groups.push_back(i % 2);
  auto job = start({.model = model, .norms = 1, .early = 1});
  Reference reference(model);
  for (uint32_t step = 1; step <= 8; ++step) {
    shm::StepRecord record = make_record(step, 2);
    record.n_groups = 2;
    record.groups[1] = record.groups[0];
    record.groups[1].lr *= 3;
    record.clip_norm = step % 4 == 0 ? 1e-3 : 1e6;
    ASSERT_NO_FATAL_FAILURE(publish_and_wait(*job, record, kChunks));
    job->post(record);
    ASSERT_TRUE(job->wait_finished(step).ok());
    reference.step(record);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
  }
  leave(*job);
}

// Another rank may say until the post that a parameter has a gradient.
TEST_F(Early, AParameterThatGetsAGradientAfterItsChunkIsUpdatedThen) {
  FakeModel model = model_of({ComputeType::kBf16, 2, kChunks, 1});
  bool unknown = true;
  model.unused = [&unknown](uint32_t place, uint32_t) { return unknown && place == 0; };
  auto job = start({.model = model, .early = 1});
  Reference reference(model);
  for (uint32_t step = 1; step <= 3; ++step) {
    const shm::StepRecord record = make_record(step, 2);
    unknown = true;
    ASSERT_NO_FATAL_FAILURE(publish_and_wait(*job, record, kChunks));
    // As ranks do that hear of other nodes' gradients before they post.
    unknown = false;
    const uint32_t chunk = model.places[0].chunk;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      job->rank(rank).grad_groups(step)[0].store(1);
      job->rank(rank).fill_grad_slot(chunk, fake_gradient(model, rank, chunk, step).data());
    }
    job->post(record);
    ASSERT_TRUE(job->wait_finished(step).ok());
    reference.step(record);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
    EXPECT_LT(job->rank(0).update_result(step).early_hits, kChunks);
  }
  leave(*job);
}

// Where most steps are clipped nothing is updated twice.
TEST_F(Early, NoneAreMadeWhileMostStepsAreClipped) {
  const FakeModel model = model_of({ComputeType::kFp32, 1, kChunks, 1});
  auto job = start({.model = model, .norms = 1, .early = 1});
  for (uint32_t step = 1; step <= 24; ++step) {
    shm::StepRecord record = make_record(step, 1);
    record.clip_norm = step <= 12 ? 1e-3 : 1e6;
    // Of the last eight verdicts four were clipped: after the fourth, and until four more were not.
    const bool expected = step <= 4 || step > 17;
    ASSERT_NO_FATAL_FAILURE(publish_and_wait(*job, record, expected ? kChunks : 0));
    job->post(record);
    ASSERT_TRUE(job->wait_finished(step).ok());
    const shm::UpdateResult result = job->rank(0).update_result(step);
    EXPECT_EQ(result.early_chunks, expected ? kChunks : 0) << step;
    EXPECT_EQ(result.early_hits, step > 12 ? result.early_chunks : 0) << step;
  }
  leave(*job);
}

}  // namespace
}  // namespace elixir::testing::early
