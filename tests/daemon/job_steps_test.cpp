// One job in process (job_test.cpp): its steps.

#include <algorithm>
#include <numeric>
#include <random>

#include "daemon/job.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using testing::expect_told;
using testing::InProcessJob;
using testing::make_model;
using testing::make_record;
using testing::Reference;

TEST(Job, AStepIsUpdatedOnceEveryRankHasPostedIt) {
  InProcessJob world({});
  Reference reference(world.model);
  world.start();
  for (uint32_t step = 1; step <= 3; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, step);
    world.post(0, step);
    EXPECT_EQ(world.ports.submitted, nullptr);
    world.post(1, step);
    // Committed before a worker has begun: it will happen.
    EXPECT_EQ(world.header(0).committed_step.load(), step);
    EXPECT_EQ(world.header(0).finished_step.load(), step - 1);
    world.finish_work();
    EXPECT_EQ(world.header(1).finished_step.load(), step);
    EXPECT_EQ(world.ports.submitted, nullptr);
    reference.step(make_record(step, 2));
    EXPECT_TRUE(world.equals(reference)) << step;
  }
  EXPECT_EQ(world.job.statistics().steps, 3u);
  EXPECT_TRUE(world.ports.told.empty());
}

TEST(Job, GradientsAreTakenBeforeThePostWhereTheirNormIsWanted) {
  InProcessJob world({.norms = true});
  Reference reference(world.model);
  world.start();
  shm::StepRecord record = make_record(1, 2);
  record.clip_norm = 0.5;
  ASSERT_TRUE(world.publish(0, 1).ok());
  EXPECT_EQ(world.ports.submits, 0);
  ASSERT_TRUE(world.publish(1, 1).ok());
  EXPECT_EQ(world.ports.submits, 1);  // the squares of the first chunk, then of the others
  world.run_workers();
  EXPECT_EQ(world.ports.submits, 2);
  world.post(0, record);
  world.post(1, record);
  EXPECT_EQ(world.ports.submits, 3);  // nothing is left but the update
  world.run_workers();
  const optim::Verdict verdict = reference.step(record);
  EXPECT_EQ(world.rank(1).memory->step_result(1).grad_norm, verdict.grad_norm);
  EXPECT_EQ(world.rank(1).memory->step_result(1).grad_scale, verdict.grad_scale);
  EXPECT_TRUE(world.equals(reference));
}

// One word a rank says so; a chunk's own moves only for who sleeps on it.
TEST(Job, ASkippedStepReachesWhoSleepsOnAChunk) {
  InProcessJob::Options options{.norms = true};
  options.model.poison_step = 1;
  InProcessJob world(std::move(options));
  world.start();
  world.header(1).param_waiters.store(1);
  world.rank(1).memory->chunk_record(2).waiters.store(1);
  shm::StepRecord record = make_record(1, 2);
  record.check_finite = 1;
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, record);
  world.run_workers();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.header(rank).skipped_through.load(), 1u);
    for (uint32_t chunk = 0; chunk < 3; ++chunk) {
      const bool sleeps = rank == 1 && chunk == 2;
      EXPECT_EQ(world.rank(rank).memory->chunk_record(chunk).param_step.load(), sleeps ? 1u : 0u);
    }
  }
}

// A look at every record of 64 ranks takes milliseconds: those of a rank that has written none
// since are left alone.
TEST(Job, LooksAtTheRecordsOfARankWhosePublicationsHaveMoved) {
  InProcessJob world({.norms = true});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  std::atomic<uint32_t>& count = world.header(1).publications;
  const uint32_t written = count.exchange(0);
  world.job.look_at_everything();
  EXPECT_EQ(world.ports.submits, 0);
  count.store(written);
  world.job.look_at_everything();
  EXPECT_EQ(world.ports.submits, 1);
}

TEST(Job, AStepThatIsNotFiniteIsSkippedAndHasNoNumber) {
  InProcessJob::Options options{.norms = true};
  options.model.poison_step = 1;
  InProcessJob world(std::move(options));
  Reference reference(world.model);
  world.start();
  for (uint32_t step = 1; step <= 2; ++step) {
    shm::StepRecord record = make_record(step, 2);
    record.check_finite = 1;
    for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, step);
    for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, record);
    world.run_workers();
    reference.step(record);
    const shm::StepResult& result = world.rank(0).memory->step_result(step);
    EXPECT_EQ(result.skipped, step == 1 ? 1u : 0u);
    EXPECT_EQ(result.applied, step - 1);
    EXPECT_EQ(world.header(0).finished_step.load(), step);
    EXPECT_TRUE(world.equals(reference)) << step;
  }
  EXPECT_EQ(world.job.statistics().skipped, 1u);
}

// A chunk would otherwise count as one without gradients of that rank: its post says that no more
// come.
TEST(Job, WhatARankPublishedIsLookedAtBeforeItsPostCounts) {
  InProcessJob world({.accumulate = 2});
  Reference reference(world.model);
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish(rank, 1, 1).ok());
  world.run_workers();
  ASSERT_TRUE(world.publish(0, 1, 2).ok());
  world.write_grads(1, 1, 2);  // its doorbells are on their way
  world.post(1, 1);
  world.run_workers();
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    const SessionMemory& memory = *world.rank(1).memory;
    EXPECT_EQ(memory.chunk_record(chunk).grad_taken.load(),
              memory.grad_record(chunk).grad_publication.load().revision)
        << chunk;
  }
  world.post(0, 1);
  world.run_workers();
  reference.step(make_record(1, 2), 2);
  EXPECT_TRUE(world.equals(reference));
}

TEST(Job, DoorbellsMayGetLost) {
  InProcessJob world({.norms = true});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.write_grads(rank, 1);
    world.write_record(rank, make_record(1, 2));
    world.header(rank).posted_step.store(1);
  }
  EXPECT_EQ(world.ports.submits, 0);
  EXPECT_EQ(world.job.lost_doorbells(), 0u);
  world.job.look_at_everything();
  world.run_workers();
  EXPECT_EQ(world.header(0).finished_step.load(), 1u);
  EXPECT_EQ(world.job.lost_doorbells(), 0u) << "they may be on their way";
  world.job.look_at_everything();
  EXPECT_EQ(world.job.lost_doorbells(), 2u * (3 + 1)) << "of each rank three chunks and a post";
  for (uint32_t rank = 0; rank < 2; ++rank) {  // they were late
    world.job.heard_post(world.rank(rank), 1);
    for (uint32_t chunk = 0; chunk < 3; ++chunk) {
      ASSERT_TRUE(world.job.look_at_grads(world.rank(rank), chunk).ok());
    }
  }
  EXPECT_EQ(world.job.lost_doorbells(), 0u);
}

// Gradients that are not taken before the post are rung for by nobody.
TEST(Job, ATickFindsNothingWhereAllIsHeard) {
  for (const bool norms : {false, true}) {
    InProcessJob world({.norms = norms});
    world.start();
    for (uint32_t step = 1; step <= 3; ++step) {
      for (uint32_t rank = 0; rank < 2; ++rank) {
        if (norms) {
          ASSERT_TRUE(world.publish(rank, step).ok());
        } else {
          world.write_grads(rank, step);
        }
        world.job.look_at_everything();
        world.post(rank, step);
        world.job.look_at_everything();
      }
      world.run_workers();
      world.job.look_at_everything();
    }
    world.job.look_at_everything();
    EXPECT_EQ(world.job.machine().finished_step(), 3u);
    EXPECT_EQ(world.job.lost_doorbells(), 0u) << norms;
  }
}

// With immediate updates a rank may be a step ahead: its chunks have their updates before the
// others have posted.
TEST(Job, GradientsOfTheStepAfterAreSeenWhenTheirStepIsAwaited) {
  InProcessJob world({.immediate = true});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) world.open(rank, 1);
  ASSERT_TRUE(world.publish_chunk(0, 0, 1).ok());
  ASSERT_TRUE(world.publish_chunk(1, 0, 1).ok());
  world.run_workers();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (const uint32_t chunk : {1, 2}) ASSERT_TRUE(world.publish_chunk(rank, chunk, 1).ok());
  }
  world.post(0, 1);
  world.open(0, 2);
  ASSERT_TRUE(world.publish_chunk(0, 0, 2).ok());  // step 1 is awaited; nobody rings again
  world.post(1, 1);
  world.finish_work();  // chunk 1
  EXPECT_TRUE(world.job.step_in_hand());
  world.open(1, 2);
  ASSERT_TRUE(world.publish_chunk(1, 0, 2).ok());
  world.finish_work();  // chunk 2
  EXPECT_EQ(world.header(0).finished_step.load(), 1u);
  EXPECT_EQ(world.job.machine().activity(), Activity::kTake) << "chunk 0 of step 2";
}

// The same where nothing is left to update at the post, so that no worker's return ends the step.
TEST(Job, GradientsOfTheStepAfterAreSeenWhenAPostEndsTheStepBefore) {
  InProcessJob world({.immediate = true});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.open(rank, 1);
    ASSERT_TRUE(world.publish(rank, 1).ok());
  }
  world.run_workers();
  world.post(0, 1);
  world.open(0, 2);
  ASSERT_TRUE(world.publish_chunk(0, 0, 2).ok());  // step 1 is awaited; nobody rings again
  world.post(1, 1);
  ASSERT_EQ(world.header(0).finished_step.load(), 1u);
  world.open(1, 2);
  ASSERT_TRUE(world.publish_chunk(1, 0, 2).ok());
  EXPECT_EQ(world.job.machine().activity(), Activity::kTake) << "chunk 0 of step 2";
}

// With norms a rank publishes gradients of the next step while the update of this one goes on.
TEST(Job, GradientsThatCameWhileAStepWasUpdatedAreTakenAfterIt) {
  InProcessJob world({.norms = true});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish(rank, 1).ok());
  world.run_workers();
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, 1);
  ASSERT_TRUE(world.job.step_in_hand());
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_chunk(rank, 0, 2);  // rung for by nobody
  world.finish_work();
  EXPECT_EQ(world.header(0).finished_step.load(), 1u);
  EXPECT_EQ(world.job.machine().activity(), Activity::kTake) << "chunk 0 of step 2";
}

// As many as a node may have.
TEST(Job, OfSixtyFourRanks) {
  InProcessJob world({.model = make_model(ComputeType::kFp32, 64, 2, 8192), .accumulate = 2});
  Reference reference(world.model);
  world.start();
  for (uint32_t step = 1; step <= 2; ++step) {
    for (uint32_t micro_step = 1; micro_step <= 2; ++micro_step) {
      for (uint32_t rank = 0; rank < 64; ++rank) {
        ASSERT_EQ(world.ports.submitted, nullptr) << "rank " << rank << " was not waited for";
        ASSERT_TRUE(world.publish(rank, step, micro_step).ok());
      }
      world.run_workers();
      for (uint32_t rank = 0; rank < 64; ++rank) ASSERT_TRUE(world.taken(rank)) << rank;
    }
    for (uint32_t rank = 0; rank < 64; ++rank) world.post(rank, step);
    world.run_workers();
    reference.step(make_record(step, 64), 2);
    ASSERT_TRUE(world.equals(reference)) << step;
  }
  world.job.lose_rank(world.rank(63));
  EXPECT_EQ(world.ports.told.size(), 63u);
}

TEST(Job, ImmediateUpdatesNeedTheHyperparametersFirst) {
  InProcessJob world({.immediate = true});
  world.start();
  ASSERT_TRUE(world.publish(0, 1).ok());
  ASSERT_TRUE(world.publish(1, 1).ok());
  EXPECT_EQ(world.ports.submits, 0);
  expect_told(world.ports, 0, Code::kProtocol, "open_step is 0");
  expect_told(world.ports, 1, Code::kPeerLost, "elixird ended rank 0");
  EXPECT_EQ(world.ports.overs, 1);
}

// Early updates in any order of publications, discards, workers and posts.
class EarlyRun {
 public:
  explicit EarlyRun(uint64_t seed)
      : random_(seed), options_(options()), world_(options_), reference_(world_.model) {
    world_.start();
  }

  void step(uint32_t step) {
    shm::StepRecord record = make_record(step, n_ranks());
    if (options_.norms) record.clip_norm = below(3) == 0 ? 1e-3 : 1e6;
    shm::StepRecord opened = record;
    if (below(4) == 0) opened.groups[0].lr *= 2;
    for (uint32_t rank = 0; rank < n_ranks(); ++rank) {
      world_.write_record(rank, opened);
      world_.header(rank).open_step.store(step);
    }
    if (below(3) == 0) {  // a pass whose gradients are dropped
      publish_pass(step, 1, 1 + below(n_chunks()));
      for (uint32_t rank = 0; rank < n_ranks(); ++rank) ++world_.discards[rank];
    }
    posted_.assign(n_ranks(), false);
    for (uint32_t round = 1; round <= options_.accumulate; ++round) {
      publish_pass(step, round, n_chunks(), round == options_.accumulate ? &record : nullptr);
    }
    for (const uint32_t rank : shuffled(n_ranks())) {
      maybe_work();
      if (!posted_[rank]) world_.post(rank, record);
    }
    world_.run_workers();
    reference_.step(record, options_.accumulate);
    ASSERT_TRUE(world_.equals(reference_));
    ASSERT_TRUE(world_.ports.told.empty()) << world_.ports.told[0].text;
  }

  const JobStatistics& statistics() const { return world_.job.statistics(); }

 private:
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  uint32_t n_ranks() const { return world_.model.shape.ranks; }
  uint32_t n_chunks() const { return world_.model.shape.n_chunks; }
  std::vector<uint32_t> shuffled(uint32_t n) {
    std::vector<uint32_t> all(n);
    std::iota(all.begin(), all.end(), 0u);
    std::shuffle(all.begin(), all.end(), random_);
    return all;
  }

  InProcessJob::Options options() {
    InProcessJob::Options options{.model = make_model(ComputeType::kFp32, 1 + below(3), 4, 1024),
                                  .accumulate = 1 + below(2),
                                  .norms = below(2) == 0,
                                  .early = true};
    options.model.shape.n_spare_slots = 1 + below(4);
    options.model.unused = [](uint32_t place, uint32_t step) { return (place + step) % 5 == 0; };
    return options;
  }

  // Each rank its chunks in an order of its own; `most` of them, after which some post at once.
  void publish_pass(uint32_t step, uint32_t round, uint32_t most,
                    const shm::StepRecord* record = nullptr) {
    std::vector<std::vector<uint32_t>> left;
    for (uint32_t rank = 0; rank < n_ranks(); ++rank) {
      left.push_back(shuffled(n_chunks()));
      left.back().resize(most);
    }
    for (uint32_t i = 0; i < n_ranks() * most; ++i) {
      uint32_t rank = below(n_ranks());
      while (left[rank].empty()) rank = (rank + 1) % n_ranks();
      const uint32_t chunk = left[rank].back();
      left[rank].pop_back();
      // A slot whose gradients are to be summed is written again once they are.
      const bool discarded = world_.discards[rank] > 0 && round == 1;
      if (round > 1 || (discarded && options_.accumulate > 1)) world_.run_workers();
      const Status status = world_.publish_chunk(rank, chunk, step, round);
      ASSERT_TRUE(status.ok()) << status.message();
      maybe_work();
      if (record == nullptr || !left[rank].empty() || below(2) == 0) continue;
      posted_[rank] = true;
      world_.post(rank, *record);
    }
  }
  void maybe_work() {
    if (world_.ports.submitted != nullptr && below(3) == 0) world_.finish_work();
  }

  std::mt19937_64 random_;
  InProcessJob::Options options_;
  InProcessJob world_;
  Reference reference_;
  std::vector<bool> posted_;
};

TEST(Job, EarlyUpdatesHaveTheReferencesBitsInAnyOrder) {
  uint64_t made = 0, hits = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    EarlyRun run(seed);
    for (uint32_t step = 1; step <= 6 && !::testing::Test::HasFatalFailure(); ++step) {
      run.step(step);
    }
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
    made += run.statistics().early_chunks_sum;
    hits += run.statistics().early_hits_sum;
  }
  EXPECT_GT(hits, 300u);
  EXPECT_LT(hits, made) << "some are dropped";
}

}  // namespace
}  // namespace elixir::daemon
