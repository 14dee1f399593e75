// One job in process (job_test.cpp): its steps.

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

}  // namespace
}  // namespace elixir::daemon
