// One job in process (job_test.cpp): a second backward pass that nobody declared.

#include "daemon/job.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using namespace testing;

TEST(Job, TheSecondGradientOfAStepIsSummedOnceThereIsMemoryForIt) {
  StartedJob world({});
  Reference reference(world.model);
  for (uint32_t step = 1; step <= 2; ++step) {
    world.publish_all(step);
    EXPECT_EQ(world.ports.submitted, nullptr) << "nothing is early";
    for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.request_sums(rank).ok());
    if (step == 1) {
      EXPECT_EQ(world.ports.submitted, nullptr) << "there is no memory";
      EXPECT_EQ(world.ports.fills, 1) << "asked for once";
      EXPECT_TRUE(world.job.reserving());
      world.fill_sums();
      EXPECT_FALSE(world.job.reserving());
    }
    world.run_workers();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(world.taken(rank)) << "its slots may be written again";
    }
    world.publish_all(step, 2);
    world.post_all(step);
    world.run_workers();
    reference.step(make_record(step, 2), 2);
    EXPECT_TRUE(world.equals(reference)) << step;
  }
  EXPECT_EQ(world.ports.fills, 1) << "the memory stays";
}

// All that the job has of its ranks' parameters.
std::vector<std::byte> params_of(InProcessJob& world) {
  std::vector<std::byte> all;
  for (uint32_t rank = 0; rank < world.model.shape.ranks; ++rank) {
    const shm::Segment& params = world.rank(rank).memory->params();
    all.insert(all.end(), params.data(), params.data() + params.bytes());
  }
  return all;
}

// A rank that has posted is not asked again: what it published, without a doorbell, is part of the
// sum that another rank asks for afterwards.
TEST(Job, ASumThatIsAskedForAfterAPostHasItsGradients) {
  StartedJob declared({.accumulate = 2}), late({});
  const auto finish = [](InProcessJob& world) {
    ASSERT_TRUE(world.publish(1, 1, 2).ok());
    world.run_workers();
    world.post(1, 1);
    world.run_workers();
  };
  declared.publish_all(1);
  declared.run_workers();
  declared.post(0, 1);
  finish(declared);

  late.write_grads(0, 1);
  late.post(0, 1);
  late.write_grads(1, 1);
  ASSERT_TRUE(late.request_sums(1).ok());
  late.fill_sums();
  late.run_workers();
  EXPECT_TRUE(late.taken(1));
  finish(late);
  EXPECT_EQ(late.finished_step(), 1u);
  EXPECT_TRUE(params_of(late) == params_of(declared));

  StartedJob without({});  // that can fail: rank 1's first gradients alone
  without.make_step(1);
  EXPECT_FALSE(params_of(without) == params_of(declared));
}

// It posted a step ahead of elixird, and runs fewer passes than the other.
TEST(Job, ARankThatPostedAStepAheadKeepsNoOtherWaiting) {
  StartedJob world({.accumulate = 3});
  world.publish_all(1);
  world.run_workers();
  world.post_all(1);
  ASSERT_NE(world.ports.submitted, nullptr) << "step 1 is in flight";
  world.write_grads(0, 2);
  world.post(0, 2);
  world.run_workers();
  for (uint32_t micro_step = 1; micro_step <= 3; ++micro_step) {
    ASSERT_TRUE(world.publish(1, 2, micro_step).ok());
    world.run_workers();
    ASSERT_TRUE(world.taken(1)) << micro_step;
  }
  world.post(1, 2);
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 2u);
}

// Rank 1 is a discard ahead, so the sum that rank 0 waits for will not be. It is told so though
// rank 2 has not come to the step.
TEST(Job, WhoWaitsForASumThatWillNotBeIsTold) {
  for (const bool immediate : {false, true}) {
    StartedJob world({.model = make_model(ComputeType::kFp32, 3, 2, 256),
                      .accumulate = 2,
                      .immediate = immediate});
    Reference reference(world.model);
    const auto publish = [&](uint32_t rank) {
      if (immediate) world.open(rank, 1);
      ASSERT_TRUE(world.publish(rank, 1).ok());
    };
    publish(0);
    world.discard(1);
    publish(1);
    world.run_workers();
    EXPECT_TRUE(world.taken(0));
    EXPECT_FALSE(world.taken(1));
    for (const uint32_t rank : {0u, 2u}) {
      world.discard(rank);
      publish(rank);
    }
    world.run_workers();
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(world.taken(rank));
    world.publish_all(1, 2);
    world.run_workers();
    world.post_all(1);
    world.run_workers();
    reference.step(make_record(1, 3), 2);
    EXPECT_TRUE(world.equals(reference));
  }
}

TEST(Job, WithoutMemoryForSumsTheJobEnds) {
  StartedJob world({});
  world.publish_all(1);
  ASSERT_TRUE(world.request_sums(0).ok());
  const uint64_t before = world.job.need_bytes();
  world.job.sums_filled(error(Code::kResourceExhausted, "no memory"));
  EXPECT_LE(world.job.need_bytes(), before);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    expect_told(world.ports, rank, Code::kResourceExhausted, "no memory");
  }
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(Job, ThatEndsWhileMemoryForSumsIsMadeIsKeptUntilThatIsOver) {
  StartedJob world({});
  world.publish_all(1);
  ASSERT_TRUE(world.request_sums(0).ok());
  world.job.lose_rank(world.rank(1));
  EXPECT_EQ(world.ports.overs, 0);
  EXPECT_TRUE(world.ports.fill_progress->cancelled.load());
  world.job.sums_filled(error(Code::kUnavailable, "cancelled"));
  EXPECT_EQ(world.ports.overs, 1);
  expect_told(world.ports, 0, Code::kPeerLost, "died");
}

// Rank 0 waits for the sum of its first gradients, rank 1 for all ranks in a call.
TEST(Job, ARankInACallOfAllRanksIsNotWaitedFor) {
  StartedJob world({.accumulate = 2});
  ASSERT_TRUE(world.publish_chunk(0, 0, 1).ok());
  world.header(0).awaited_sum.store(1);
  ASSERT_TRUE(world.job.look_at_grads(world.rank(0), 0).ok());
  EXPECT_EQ(world.ports.submitted, nullptr) << "rank 1 may publish it";
  world.await_ready(1, 90, /*all_ranks=*/true);
  world.run_workers();
  EXPECT_EQ(world.rank(0).memory->chunk_record(0).grad_taken.load(), 1u);
  world.header(0).awaited_sum.store(0);
  world.await_ready(0, 91, /*all_ranks=*/true);
  EXPECT_EQ(world.ports.replies.size(), 4u) << "both are answered, as at the start";
  EXPECT_EQ(world.ports.overs, 0);
}

// The rank that it waits for is in the midst of the step and does not go on. One between two steps
// may take as long as it likes.
TEST(Job, ARankThatStopsInTheMidstOfAStepIsNamed) {
  constexpr int64_t kSecond = 1'000'000'000;
  for (const bool begun : {false, true}) {
    StartedJob world({.accumulate = 2});
    const auto tick = [&](int64_t seconds) {
      world.job.look_at_everything();
      world.job.check_timeout(seconds * kSecond, 60);
    };
    tick(1000);
    ASSERT_TRUE(world.publish_chunk(0, 0, 1).ok());
    world.header(0).awaited_sum.store(1);
    if (begun) world.write_chunk(1, 1, 1);
    for (const int64_t seconds : {1001, 1030, 1060}) tick(seconds);
    EXPECT_EQ(world.ports.overs, 0);
    if (begun) world.write_chunk(1, 2, 1);  // it goes on
    for (const int64_t seconds : {1065, 1090, 1124}) tick(seconds);
    EXPECT_EQ(world.ports.overs, 0);
    tick(1126);
    EXPECT_EQ(world.ports.overs, begun ? 1 : 0);
    if (begun)
      expect_told(world.ports, 0, Code::kTimedOut, "rank 1 has made some gradients of step 1");
  }
}

}  // namespace
}  // namespace elixir::daemon
