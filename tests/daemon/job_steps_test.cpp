// One job in process (job_test.cpp): its steps.

#include "daemon/job.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using namespace testing;

TEST(Job, AStepIsUpdatedOnceEveryRankHasPostedIt) {
  StartedJob world({});
  Reference reference(world.model);
  for (uint32_t step = 1; step <= 3; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, step);
    world.post(0, step);
    EXPECT_EQ(world.ports.submitted, nullptr);
    world.post(1, step);
    // Committed before a worker has begun: it will happen.
    EXPECT_EQ(world.header(0).committed_step.load(), step);
    EXPECT_EQ(world.finished_step(), step - 1);
    world.finish_work();
    EXPECT_EQ(world.header(1).finished_step.load(), step);
    EXPECT_EQ(world.ports.submitted, nullptr);
    reference.step(make_record(step, 2));
    EXPECT_TRUE(world.equals(reference)) << step;
  }
  EXPECT_EQ(world.job.statistics().steps, 3u);
  EXPECT_TRUE(world.ports.told.empty());
}

// One word a rank says so; a chunk's own moves only for who sleeps on it.
TEST(Job, ASkippedStepReachesWhoSleepsOnAChunk) {
  InProcessJob::Options options{.norms = true};
  options.model.poison_step = 1;
  StartedJob world(options);
  world.header(1).param_waiters.store(1);
  world.rank(1).memory->chunk_record(2).waiters.store(1);
  shm::StepRecord record = make_record(1, 2);
  record.check_finite = 1;
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.trainers.post(record);
  world.run_workers();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.header(rank).skipped_through.load(), 1u);
    for (uint32_t chunk = 0; chunk < 3; ++chunk) {
      const bool sleeps = rank == 1 && chunk == 2;
      EXPECT_EQ(world.rank(rank).memory->chunk_record(chunk).param_step.load(), sleeps ? 1u : 0u);
    }
  }
  EXPECT_EQ(world.job.statistics().skipped, 1u);
}

// A look at every record of 64 ranks takes milliseconds: those of a rank that has written none
// since are left alone.
TEST(Job, LooksAtTheRecordsOfARankWhosePublicationsHaveMoved) {
  StartedJob world({.norms = true});
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  std::atomic<uint32_t>& count = world.header(1).publications;
  const uint32_t written = count.exchange(0);
  world.job.look_at_everything();
  EXPECT_EQ(world.ports.submits, 0);
  count.store(written);
  world.job.look_at_everything();
  EXPECT_EQ(world.ports.submits, 1);
}

TEST(Job, DoorbellsMayGetLost) {
  StartedJob world({.norms = true});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.write_grads(rank, 1);
    world.post_silently(rank, 1);
  }
  EXPECT_EQ(world.ports.submits, 0);
  EXPECT_EQ(world.job.lost_doorbells(), 0u);
  world.job.look_at_everything();
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 1u);
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
    StartedJob world({.norms = norms});
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
    EXPECT_EQ(world.finished_step(), 3u);
    EXPECT_EQ(world.job.lost_doorbells(), 0u) << norms;
  }
}

TEST(Job, AGradientOnOneRankIsEnough) {
  StartedJob world({});
  Reference reference(world.model);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.write_grads(rank, 1);
    world.trainers.rank(rank).grad_groups(1)[3 * rank].store(shm::kNoGradient);
  }
  world.post_all(1);
  world.run_workers();
  reference.step(make_record(1, 2));
  EXPECT_TRUE(world.equals(reference));
}

}  // namespace
}  // namespace elixir::daemon
