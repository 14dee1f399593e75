// One job in process (job_test.cpp): how it ends.

#include <functional>
#include <limits>

#include "daemon/job.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using namespace testing;

// ---- faults ----

TEST(Job, WhoBreaksTheRulesHearsWhyAndTheOthersThatTheyLostIt) {
  StartedJob world({});
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

FakeModel in_two_groups() {
  FakeModel model = make_model(ComputeType::kFp32, 2, 2, 1024);
  model.groups = {0, 1, 0, 0};
  return model;
}

FakeModel collective_model() {
  FakeModel model = make_model(ComputeType::kFp32, 2, 2, 1024);
  model.shape.exchange = shm::Exchange::kCollective;
  return model;
}

shm::StepRecord clipped(uint32_t step) {
  shm::StepRecord record = make_record(step, 2);
  record.clip_norm = 1;
  return record;
}

// Every rank's gradients and posts, of which rank 1's is `other`.
void post_other(InProcessJob& world, const shm::StepRecord& other) {
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.post(0, 1);
  world.post(1, other);
}

TEST(Job, AStepThatBreaksTheRulesIsNotCommitted) {
  const struct {
    const char* what;
    InProcessJob::Options options;
    std::function<void(InProcessJob&)> act;
    uint32_t rank;
    const char* heard;
  } faults[] = {
      {"a record with a number that is none",
       {},
       [](InProcessJob& world) {
         shm::StepRecord record = make_record(1, 2);
         record.groups[0].hyper[kBeta1] = std::numeric_limits<double>::quiet_NaN();
         post_other(world, record);
       },
       1,
       "beta1"},
      {"squares of all gradients that differ",
       {.model = collective_model(), .norms = 1},
       [](InProcessJob& world) {
         shm::StepRecord record = clipped(1);
         add_leaf(record.norm, 4);
         world.publish_all(1);
         world.post(0, record);
         add_leaf(record.norm, 0x1p-200);
         world.post(1, record);
       },
       1,
       "the squares of all gradients"},
      {"a chunk without its gradients",
       {},
       [](InProcessJob& world) {
         world.write_grads(0, 1);
         for (uint32_t chunk = 0; chunk < 2; ++chunk) world.write_chunk(1, chunk, 1);
         world.post_all(1);
       },
       1,
       "in chunk 2"},
      {"a chunk that is not there",
       {.norms = 1},
       [](InProcessJob& world) { world.trainers.rank(1).ring_grads(3); },
       1,
       "gradients of chunk 3 of 3"},
      {"a sum of a chunk that is not there is awaited",
       {.accumulate = 2},
       [](InProcessJob& world) {
         world.header(1).awaited_sum.store(4);
         world.trainers.publish_chunk(1, 0, 1);
       },
       1,
       "a sum of chunk 3 is awaited"},
      {"a group without hyperparameters",
       {.model = in_two_groups()},
       [](InProcessJob& world) { world.make_step(1); },
       0,
       "is of group 1, and there are 1"},
      {"a parameter of two groups",
       {},
       [](InProcessJob& world) {
         shm::StepRecord record = make_record(1, 2);
         record.n_groups = 2;
         for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
         world.trainers.rank(1).grad_groups(1)[0].store(2);
         world.trainers.post(record);
       },
       1,
       "of group 1, and of group 0 on a rank before"},
      {"one rank alone discards what was summed",
       {.accumulate = 4},
       [](InProcessJob& world) {
         world.publish_all(1);
         world.run_workers();
         world.discard(1);
         for (uint32_t rank = 0; rank < 2; ++rank) {
           ASSERT_TRUE(world.publish(rank, 1, 2 - rank).ok());
         }
         world.post_all(1);
       },
       0,
       "discard the same backward passes"},
      {"a discard that does not come to all chunks",
       {},
       [](InProcessJob& world) {
         for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
         world.discard(1);
         world.write_chunk(1, 0, 1);
         world.post_all(1);
       },
       1,
       "(revision 1) in chunk 1, which it has discarded since"},
      {"immediate: gradients of a step that was not opened",
       {.immediate = 1},
       [](InProcessJob& world) {
         world.open(0, 1);
         world.trainers.publish(1);
       },
       1,
       "open_step is 0"},
      {"immediate: clipping",
       {.immediate = 1},
       [](InProcessJob& world) {
         world.trainers.open(clipped(1));
         world.trainers.publish(1);
       },
       0,
       "with immediate updates both must be 0"},
      {"immediate: other hyperparameters at the post",
       {.immediate = 1},
       [](InProcessJob& world) {
         world.trainers.open(make_record(1, 2));
         world.publish_all(1);
         world.run_workers();
         shm::StepRecord record = make_record(1, 2);
         record.groups[0].lr *= 2;
         world.trainers.post(record);
       },
       0,
       "lr of group 0 is 0.02, not 0.01 as when the step was opened"},
      {"immediate: a rank changes its word between the chunks of one parameter",
       {.model = make_long_model(ComputeType::kFp32, 2, 128 * 37), .immediate = 1},
       [](InProcessJob& world) {
         world.trainers.open(make_record(1, 2));
         for (uint32_t chunk = 0; chunk < world.model.shape.n_chunks; ++chunk) {
           for (uint32_t rank = 0; rank < 2; ++rank) {
             ASSERT_TRUE(world.publish_chunk(rank, chunk, 1).ok());
             world.trainers.rank(rank).say([](uint32_t place, uint32_t) {
               return place == 0 ? shm::kNoGradient : uint8_t{1};
             });
           }
           world.run_workers();
         }
         world.post_all(1);
       },
       0,
       "mark it before the first one"},
  };
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.what);
    StartedJob world(fault.options);
    fault.act(world);
    world.run_workers();
    expect_told(world.ports, fault.rank, Code::kProtocol, fault.heard);
    expect_told(world.ports, 1 - fault.rank, Code::kPeerLost, "elixird ended rank");
    EXPECT_EQ(world.header(0).committed_step.load(), 0u);
    EXPECT_EQ(world.ports.overs, 1);
  }
}

TEST(Job, AFaultWaitsForTheWorkers) {
  StartedJob world({});
  Reference reference(world.model);
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.post_all(1);
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
  StartedJob world({.norms = true});
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

// And the doorbells were not heard yet. With a norm its squares and the verdict still come.
TEST(Job, StepsThatAllHadPostedHappenAfterADeath) {
  for (const uint32_t norms : {0u, 1u}) {
    for (const uint32_t accumulate : {1u, 2u}) {
      StartedJob world({.accumulate = accumulate, .norms = norms});
      Reference reference(world.model);
      const shm::StepRecord record = norms == 0 ? make_record(1, 2) : clipped(1);
      for (uint32_t rank = 0; rank < 2; ++rank) {
        world.write_grads(rank, 1);
        world.trainers.rank(rank).post_silently(record);
      }
      world.job.lose_rank(world.rank(1));
      EXPECT_EQ(world.ports.closed, std::vector<int>{101});
      EXPECT_EQ(world.ports.overs, 0);
      world.run_workers();
      reference.step(record);
      EXPECT_TRUE(world.equals(reference));
      EXPECT_EQ(world.finished_step(), 1u);
      EXPECT_EQ(world.ports.overs, 1);
      expect_told(world.ports, 0, Code::kPeerLost, "rank 1 (pid -1) died");
      EXPECT_EQ(world.ports.told.size(), 1u);  // nobody tells the dead
    }
  }
}

TEST(Job, ADeathBetweenImmediateUpdatesSaysThatWeightsAreOfTwoSteps) {
  StartedJob world({.immediate = true});
  world.trainers.open(make_record(1, 2));
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish_chunk(rank, 0, 1).ok());
  world.run_workers();
  EXPECT_EQ(world.rank(0).memory->chunk_record(0).param_step.load(), 1u);
  world.job.lose_rank(world.rank(0));
  expect_told(world.ports, 1, Code::kPeerLost, "belong to two steps");
}

TEST(Job, EndsWhenTheLastRankHasSaidGoodbye) {
  StartedJob world({});
  world.job.detach(world.rank(0));
  EXPECT_EQ(world.ports.closed, std::vector<int>{100});
  EXPECT_EQ(world.ports.overs, 0);  // the other maps its params
  world.job.detach(world.rank(1));
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_TRUE(world.ports.told.empty());
  EXPECT_FALSE(world.job.machine().fault());
}

TEST(Job, AGoodbyeComesAfterWhatWasPostedBeforeIt) {
  StartedJob world({});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.write_grads(rank, 1);
    world.post_silently(rank, 1);  // the doorbell comes after the Detach, or never
  }
  for (uint32_t rank = 0; rank < 2; ++rank) world.job.detach(world.rank(rank));
  EXPECT_EQ(world.ports.overs, 0);
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 1u);
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_TRUE(world.ports.told.empty());
}

// ---- a lack of memory ----

void expect_given_up(InProcessJob& world) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    expect_told(world.ports, rank, Code::kResourceExhausted, no_memory_left().message());
    EXPECT_NE(world.header(rank).fault.load(), 0u);
  }
  EXPECT_EQ(world.ports.overs, 1);
  world.job.give_up();  // again is harmless
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_EQ(world.ports.told.size(), 2u);
}

TEST(Job, ThatIsGivenUpEndsAtOnceWhereNothingUsesItsMemory) {
  StartedJob world({});
  world.make_step(1);
  world.job.give_up();
  expect_given_up(world);
}

TEST(Job, ThatIsGivenUpEndsOnceTheWorkersAreDone) {
  StartedJob world({});
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.post_all(1);
  ASSERT_NE(world.ports.submitted, nullptr);
  world.job.give_up();
  EXPECT_EQ(world.ports.overs, 0);
  world.finish_work();
  expect_given_up(world);
}

TEST(Job, ThatIsGivenUpEndsOnceNobodyMakesMemoryForIt) {
  InProcessJob world({});
  world.claim(0);
  const auto progress = world.rank(0).reservation->progress;
  world.job.give_up();
  EXPECT_EQ(world.ports.overs, 0);
  EXPECT_TRUE(progress->cancelled.load());
  world.job.reserved(world.rank(0), no_memory_left());
  EXPECT_EQ(world.ports.overs, 1);
  expect_told(world.ports, 0, Code::kResourceExhausted, no_memory_left().message());
}

}  // namespace
}  // namespace elixir::daemon
