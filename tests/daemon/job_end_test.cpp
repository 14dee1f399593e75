// One job in process (job_test.cpp): how it ends.

#include <limits>

#include "daemon/job.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using testing::expect_told;
using testing::InProcessJob;
using testing::make_record;
using testing::Reference;

// ---- faults ----

TEST(Job, WhoBreaksTheRulesHearsWhyAndTheOthersThatTheyLostIt) {
  InProcessJob world({});
  world.start();
  world.header(1).posted_step.store(9);
  world.job.look_at_posted(world.rank(1));
  expect_told(world.ports, 1, Code::kProtocol, "posted_step went from 0 to 9");
  expect_told(world.ports, 0, Code::kPeerLost, "elixird ended rank 1");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.header(rank).fault_rank.load(), 1u);
    EXPECT_NE(world.header(rank).fault.load(), 0u);
  }
  EXPECT_EQ(world.ports.closed, (std::vector<int>{100, 101}));
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(Job, ARecordThatBreaksTheRulesIsNotCommitted) {
  InProcessJob world({});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.post(0, 1);
  shm::StepRecord other = make_record(1, 2);
  other.groups[0].hyper[kBeta1] = std::numeric_limits<double>::quiet_NaN();
  world.post(1, other);
  EXPECT_EQ(world.ports.submits, 0);
  EXPECT_EQ(world.header(0).committed_step.load(), 0u);
  expect_told(world.ports, 1, Code::kProtocol, "beta1");
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(Job, AStepWithoutItsGradientsIsNotCommitted) {
  InProcessJob world({});
  world.start();
  world.write_grads(0, 1);
  for (uint32_t chunk = 0; chunk < 2; ++chunk) world.write_chunk(1, chunk, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, 1);
  expect_told(world.ports, 1, Code::kProtocol, "in chunk 2");
  EXPECT_EQ(world.header(0).committed_step.load(), 0u);
}

TEST(Job, AFaultWaitsForTheWorkers) {
  InProcessJob world({});
  Reference reference(world.model);
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, 1);
  world.job.end_session(world.rank(0), Status(Code::kProtocol, "nonsense"));
  world.job.end_session(world.rank(1), Status(Code::kProtocol, "the second reason"));
  EXPECT_EQ(world.ports.overs, 0);  // workers use its memory
  EXPECT_TRUE(world.ports.told.empty());
  world.finish_work();
  EXPECT_EQ(world.ports.overs, 1);
  expect_told(world.ports, 0, Code::kProtocol, "nonsense");
  expect_told(world.ports, 1, Code::kPeerLost, "nonsense");
  reference.step(make_record(1, 2));
  EXPECT_TRUE(world.equals(reference));  // what was committed happened
}

TEST(Job, AJobThatIsOverHearsNothing) {
  InProcessJob world({.norms = true});
  world.start();
  world.job.end_session(world.rank(0), Status(Code::kProtocol, "nonsense"));
  ASSERT_EQ(world.ports.overs, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(world.publish(rank, 1).ok());
    world.post(rank, 1);
    world.job.detach(world.rank(rank));
    world.job.lose_rank(world.rank(rank));
  }
  world.job.look_at_everything();
  world.job.check_timeout(std::numeric_limits<int64_t>::max(), 1);
  world.job.stop();
  EXPECT_EQ(world.ports.submits, 0);
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_EQ(world.ports.told.size(), 2u);
  EXPECT_EQ(world.ports.closed.size(), 2u);
}

// ---- deaths and goodbyes ----

TEST(Job, StepsThatAllHadPostedHappenAfterADeath) {
  InProcessJob world({});
  Reference reference(world.model);
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.write_grads(rank, 1);
    world.write_record(rank, make_record(1, 2));
    world.header(rank).posted_step.store(1);  // and the doorbells were not heard yet
  }
  world.job.lose_rank(world.rank(1));
  EXPECT_EQ(world.ports.closed, std::vector<int>{101});
  EXPECT_EQ(world.ports.overs, 0);
  world.run_workers();
  reference.step(make_record(1, 2));
  EXPECT_TRUE(world.equals(reference));
  EXPECT_EQ(world.header(0).finished_step.load(), 1u);
  EXPECT_EQ(world.ports.overs, 1);
  expect_told(world.ports, 0, Code::kPeerLost, "rank 1 (pid -1) died");
  EXPECT_EQ(world.ports.told.size(), 1u);  // nobody tells the dead
}

TEST(Job, AStepThatTheDeadRankHadNotPostedDoesNotHappen) {
  InProcessJob world({});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.post(0, 1);
  world.job.lose_rank(world.rank(1));
  EXPECT_EQ(world.ports.submits, 0);
  EXPECT_EQ(world.header(0).committed_step.load(), 0u);
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(Job, ADeathBetweenImmediateUpdatesSaysThatWeightsAreOfTwoSteps) {
  InProcessJob world({.immediate = true});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) world.open(rank, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish_chunk(rank, 0, 1).ok());
  world.run_workers();
  EXPECT_EQ(world.rank(0).memory->chunk_record(0).param_step.load(), 1u);
  world.job.lose_rank(world.rank(0));
  expect_told(world.ports, 1, Code::kPeerLost, "of two steps");
}

TEST(Job, EndsWhenTheLastRankHasSaidGoodbye) {
  InProcessJob world({});
  world.start();
  world.job.detach(world.rank(0));
  EXPECT_EQ(world.ports.closed, std::vector<int>{100});
  EXPECT_EQ(world.ports.overs, 0);  // the other maps its params
  world.job.detach(world.rank(1));
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_TRUE(world.ports.told.empty());
  EXPECT_FALSE(world.job.machine().fault());
}

TEST(Job, AGoodbyeWhileTheOthersGoOnIsAFault) {
  InProcessJob world({});
  world.start();
  world.job.detach(world.rank(1));
  world.write_grads(0, 1);
  world.post(0, 1);
  expect_told(world.ports, 0, Code::kPeerLost, "rank 1 detached after step 0");
  EXPECT_EQ(world.ports.overs, 1);
}

// It would not post either, and nothing would tell it that the other has gone.
TEST(Job, AGoodbyeKeepsNobodyWaitingForASum) {
  for (const bool published : {false, true}) {
    InProcessJob world({.accumulate = 2});
    world.start();
    ASSERT_TRUE(world.publish(0, 1).ok());
    if (published) world.write_grads(1, 1);  // without a doorbell
    world.job.detach(world.rank(1));
    ASSERT_NE(world.ports.submitted, nullptr) << "rank 1 has published: " << published;
    while (world.ports.submitted->run_slice(0, 0)) {
    }
    EXPECT_TRUE(world.taken(0));
    EXPECT_TRUE(world.taken(1)) << "in its place, not after the next micro-step of rank 0";
    world.write_grads(0, 1, 2);      // before elixird hears that the workers are done
    world.job.look_at_everything();  // at what rank 1 has left, too
    world.run_workers();
    EXPECT_TRUE(world.taken(0));
    EXPECT_EQ(world.ports.overs, 0) << "it may say goodbye, too";
    world.post(0, 1);
    expect_told(world.ports, 0, Code::kPeerLost, "rank 1 detached after step 0");
    EXPECT_EQ(world.ports.overs, 1);
  }
}

TEST(Job, AGoodbyeComesAfterWhatWasPostedBeforeIt) {
  InProcessJob world({});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.write_grads(rank, 1);
    world.write_record(rank, make_record(1, 2));
    world.header(rank).posted_step.store(1);  // the doorbell comes after the Detach, or never
  }
  world.job.detach(world.rank(0));
  world.job.detach(world.rank(1));
  EXPECT_EQ(world.ports.overs, 0);
  world.run_workers();
  EXPECT_EQ(world.header(0).finished_step.load(), 1u);
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_TRUE(world.ports.told.empty());
}

}  // namespace
}  // namespace elixir::daemon
