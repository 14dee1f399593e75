// Parameters longer than a chunk, through a real elixird: whatever the chunk length and the way of
// updating, the bits of one chunk that holds them whole.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "tests/daemon/gradients_fixture.h"
#include "tests/support/sanitized.h"

namespace elixir::testing::long_parameters {
namespace {

constexpr uint64_t kWhole = 128 * 37 * 3;            // the longest parameter fits
constexpr uint64_t kShort[] = {128 * 37, 128 * 11};  // it takes three chunks, or eleven
constexpr uint32_t kPoisonedStep = 5;

// How a job updates its chunks.
struct Mode {
  const char* name;
  uint32_t accumulate = 1, immediate = 0, early = 0;
  double clip_norm = 0;  // every other step; 0: never
  uint32_t swing = 0;    // at most so many chunks, the last; the very last holds no long parameter
};

constexpr Mode kModes[] = {{.name = "deferred"},
                           {.name = "clipping", .clip_norm = 1e-2},
                           {.name = "accumulating", .accumulate = 3},
                           {.name = "immediate", .immediate = 1},
                           {.name = "immediate and accumulating", .accumulate = 2, .immediate = 1},
                           {.name = "early", .early = 1},
                           {.name = "early and accumulating", .accumulate = 2, .early = 1},
                           {.name = "early and clipping", .early = 1, .clip_norm = 1e-2},
                           {.name = "one swings", .swing = 1},
                           {.name = "early and one swings", .early = 1, .swing = 1},
                           {.name = "all swing", .clip_norm = 1e-2, .swing = UINT32_MAX}};

// The longest parameter has no gradient in some steps, nor has a short one in others, so that
// parameters count differently; and they are of two groups.
FakeModel model_of(ComputeType type, uint32_t ranks, uint64_t chunk_numel) {
  FakeModel model = make_long_model(type, ranks, chunk_numel);
  model.groups = {1, 0, 1, 0, 1, 0};
  model.unused = [](uint32_t place, uint32_t step) {
    return (place == 0 && step % 3 == 2) || (place == 2 && step % 4 == 1);
  };
  return model;
}

shm::StepRecord record_of(const Mode& mode, uint32_t step, uint32_t ranks) {
  shm::StepRecord record = make_record(step, ranks);
  record.n_groups = 2;
  record.groups[1] = {3e-3, 0.2, {0.8, 0.9, 1e-8}};
  if (mode.clip_norm > 0) record.clip_norm = step % 2 == 0 ? mode.clip_norm : 1e6;
  return record;
}

class LongParameters : public Gradients {
 protected:
  static void make_step(FakeJob& job, const Mode& mode, const shm::StepRecord& record) {
    if (mode.immediate + mode.early > 0) {
      for (auto& rank : job.ranks()) rank->open(record);
    }
    for (uint32_t round = 1; round <= mode.accumulate; ++round) {
      if (round > 1) {
        ASSERT_TRUE(job.wait_taken().ok());
      }
      job.publish(record.step, round);
    }
    job.post(record);
    ASSERT_TRUE(job.swing(record.step).ok());
    ASSERT_TRUE(job.wait_finished(record.step).ok());
  }

  void expect_bits_of_whole_chunks(const FakeModel& model, const Mode& mode) {
    const FakeModel whole = [&] {
      FakeModel other = model_of(model.shape.type, model.shape.ranks, kWhole);
      other.poison_step = model.poison_step;
      return other;
    }();
    auto job = start({.model = model,
                      .accumulate = mode.accumulate,
                      .immediate = mode.immediate,
                      .norms = mode.clip_norm > 0 ? 1u : 0u,
                      .early = mode.early});
    Reference reference(model), of_whole(whole);
    for (uint32_t step = 1; step <= 7; ++step) {
      const shm::StepRecord record = record_of(mode, step, model.shape.ranks);
      ASSERT_NO_FATAL_FAILURE(make_step(*job, mode, record));
      const optim::Verdict verdict = reference.step(record, mode.accumulate);
      of_whole.step(record, mode.accumulate);
      expect_verdict(*job, step, verdict, reference.applied());
      const Status same = job->compare(reference);
      ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
      uint64_t numel = 0;
      for (uint32_t i = 0; i < model.places.size(); ++i) {
        ASSERT_EQ(reference.masters_of(i), of_whole.masters_of(i)) << model.places[i].name;
        const bool elixirds = !model.shape.swings(model.places[i].chunk);
        const bool updated = model.grad_group(i, step) != shm::kNoGradient;
        if (elixirds && updated) numel += model.places[i].numel;
      }
      if (!verdict.skipped) {
        EXPECT_EQ(job->rank(0).update_result(step).updated_numel, numel);
      }
    }
    leave(*job);
  }
};

constexpr uint32_t kShare = kSanitized ? 11 : 1;  // of all cases every so-many-th

TEST_F(LongParameters, HaveTheBitsOfOneLongChunkInEveryModeOfUpdates) {
  uint32_t number = 0;
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
    for (const uint32_t ranks : {1u, 2u, 3u}) {
      for (const uint64_t chunk_numel : kShort) {
        for (const Mode& mode : kModes) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, {} elements a chunk, {}", compute_type_name(type),
                                   ranks, chunk_numel, mode.name));
          if (number++ % kShare != 0) continue;
          FakeModel model = model_of(type, ranks, chunk_numel);
          if (mode.clip_norm > 0) model.poison_step = kPoisonedStep;
          // Fewer than the longest parameter has chunks, and as many as there are.
          model.shape.n_swing_chunks = std::min(mode.swing, model.shape.n_chunks);
          model.shape.n_swing_lanes = mode.swing > 0 ? 2 : 0;
          const uint32_t spare = chunk_numel == kShort[0] ? 2 : model.shape.first_swing();
          if (mode.early != 0) model.shape.n_spare_slots = spare;
          ASSERT_NO_FATAL_FAILURE(expect_bits_of_whole_chunks(model, mode));
        }
      }
    }
  }
}

// Adam's counts stand, whatever is made again: gradients are dropped and published anew, and the
// rate is another one at the post.
TEST_F(LongParameters, EarlyUpdatesThatAreUndoneAreCountedOnce) {
  const Mode early{.name = "early", .early = 1};
  for (const uint32_t ranks : {1u, 2u}) {
    FakeModel model = model_of(ComputeType::kBf16, ranks, kShort[1]);
    model.shape.n_spare_slots = 3;
    auto job = start({.model = model, .early = 1});
    Reference reference(model);
    for (uint32_t step = 1; step <= 8; ++step) {
      shm::StepRecord record = record_of(early, step, ranks);
      shm::StepRecord opened = record;
      if (step % 3 == 0) opened.groups[1].lr *= 2;
      for (auto& rank : job->ranks()) rank->open(opened);
      job->publish(step);
      if (step % 2 == 1) {
        for (auto& rank : job->ranks()) rank->discard();
        job->publish(step);
      }
      job->post(record);
      ASSERT_TRUE(job->wait_finished(step).ok());
      reference.step(record);
      const Status same = job->compare(reference);
      ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
    }
    leave(*job);
  }
}

// With immediate updates a part is updated as was said when it was published.
TEST_F(LongParameters, ARankThatChangesItsWordBetweenTheChunksOfOneIsTold) {
  FakeModel model = make_long_model(ComputeType::kFp32, 1, kShort[0]);
  auto job = start({.model = model, .immediate = 1});
  FakeTrainer& rank = job->rank(0);
  const shm::StepRecord record = make_record(1, 1);
  rank.open(record);
  for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
    rank.write_grads(chunk, fake_gradient(model, 0, chunk, 1).data(), 1);
    rank.ring_grads(chunk);
    ASSERT_TRUE(rank.wait_param(chunk, 1).ok());
    if (chunk > 0) continue;
    model.unused = [](uint32_t place, uint32_t) { return place == 0; };
    rank.say([&model](uint32_t place, uint32_t step) { return model.grad_group(place, step); });
  }
  rank.post(record);
  expect_fault(*job, 0, "say it before all of them");
}

// A node with ranks 1 and 2 of three, each of which brings the sums of its shards.
TEST_F(LongParameters, AreCutIntoShardsChunkByChunkWithTheCollectiveExchange) {
  for (const uint64_t chunk_numel : kShort) {
    const FakeModel whole = make_long_model(ComputeType::kBf16, 1, chunk_numel);
    shm::Shape shape = whole.shape;
    shape.ranks = 3;
    shape.exchange = shm::Exchange::kCollective;
    const auto shard = [&shape](const auto& chunk, uint32_t rank, uint64_t unit) {
      auto part = chunk;
      part.assign(shape.shard_numel() * unit, {});
      std::copy(chunk.begin() + static_cast<long>(shape.shard_begin(rank) * unit),
                chunk.begin() + static_cast<long>(shape.shard_end(rank) * unit), part.begin());
      return part;
    };
    std::vector<std::unique_ptr<FakeTrainer>> ranks;
    for (const uint32_t rank : {1u, 2u}) {
      auto trainer = FakeTrainer::attach({.folder = daemon_->folder(),
                                          .job = "shards",
                                          .rank = rank,
                                          .first_rank = 1,
                                          .local_ranks = 2,
                                          .shape = shape,
                                          .places = whole.places});
      ASSERT_TRUE(trainer.ok()) << trainer.status().message();
      ranks.push_back(std::move(*trainer));
    }
    for (auto& rank : ranks) ASSERT_TRUE(rank->await_peers().ok() && rank->hello().ok());
    for (uint32_t local = 0; local < 2; ++local) {
      std::vector<std::vector<float>> shards;
      for (const auto& chunk : initial_values(whole)) shards.push_back(shard(chunk, local + 1, 1));
      ASSERT_TRUE(ranks[local]->load(shards).ok());
    }
    Reference reference(whole);
    for (uint32_t step = 1; step <= 3; ++step) {
      const shm::StepRecord record = make_record(step, 1);
      for (uint32_t local = 0; local < 2; ++local) {
        for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) {
          const auto grads = fake_gradient(whole, 0, chunk, step);
          ranks[local]->write_grads(chunk, shard(grads, local + 1, 2).data(), step);
        }
        ranks[local]->post(record);
      }
      reference.step(record);
      for (auto& rank : ranks) ASSERT_TRUE(rank->wait_finished(step).ok());
    }
    for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) {
      const std::vector<float> have = ranks[0]->masters(chunk), want = reference.masters(chunk);
      const auto first = static_cast<long>(shape.shard_begin(1));
      const auto end = static_cast<long>(whole.used_numel(chunk));
      EXPECT_TRUE(end <= first ||
                  std::equal(have.begin() + first, have.begin() + end, want.begin() + first))
          << "chunk " << chunk << " of " << shape.n_chunks;
    }
    leave(ranks);
  }
}

}  // namespace
}  // namespace elixir::testing::long_parameters
