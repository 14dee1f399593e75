// One job in process: its verbs are called by hand, its ranks' shared memory is written by hand,
// and its work is done when a test says so, so that every order of events can be had.

#include "daemon/job.h"

#include <cmath>
#include <limits>

#include "base/clock.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using testing::FakePorts;
using testing::InProcessJob;
using testing::make_model;
using testing::make_record;
using testing::Reference;

void expect_told(const FakePorts& ports, uint32_t rank, Code code, const std::string& needle) {
  for (const FakePorts::Told& told : ports.told) {
    if (told.rank != rank) continue;
    EXPECT_EQ(told.code, code) << told.text;
    EXPECT_NE(told.text.find(needle), std::string::npos) << told.text;
    return;
  }
  ADD_FAILURE() << "rank " << rank << " was told nothing";
}

// ---- ranks come ----

TEST(Job, EveryRankHasOnePlace) {
  InProcessJob world({});
  world.claim(0);
  Session again;
  EXPECT_EQ(world.job.claim(std::move(again)).status().code(), Code::kInvalidArgument);
  Session elsewhere;  // rank 0, in another place
  elsewhere.local_rank = 1;
  const Result<Session*> claimed = world.job.claim(std::move(elsewhere));
  EXPECT_NE(claimed.status().message().find("local rank 0 and 1"), std::string::npos);
  EXPECT_EQ(world.job.machine().missing_ranks(), std::vector<uint32_t>{1});
}

TEST(Job, RanksAreAnsweredWhenTheLastLoadIsTaken) {
  InProcessJob world({});
  world.start();
  EXPECT_EQ(world.ports.replies, (std::vector<std::pair<uint32_t, uint64_t>>{{0, 70}, {1, 71}}));
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(world.rank(0).memory->chunk_record(chunk).loads_taken.load(), 1u);
  }
  EXPECT_TRUE(world.equals(Reference(world.model)));
  world.await_ready(1, 99);  // it is ready already
  EXPECT_EQ(world.ports.replies.back().second, 99u);
}

TEST(Job, RanksMeetWhereAllAsk) {
  InProcessJob world({});
  world.start();
  const size_t before = world.ports.replies.size();
  world.await_ready(1, 99, /*all_ranks=*/true);
  EXPECT_EQ(world.ports.replies.size(), before);
  world.await_ready(0, 98, /*all_ranks=*/true);
  ASSERT_EQ(world.ports.replies.size(), before + 2);
  world.await_ready(1, 100, /*all_ranks=*/true);
  EXPECT_EQ(world.ports.replies.size(), before + 2);
  // Who waits for one that says goodbye is told.
  world.job.detach(world.rank(0));
  ASSERT_FALSE(world.ports.told.empty());
  EXPECT_EQ(world.ports.told.back().code, Code::kPeerLost);
  EXPECT_NE(world.ports.told.back().text.find("waits for all ranks"), std::string::npos);
}

TEST(Job, AStepOfAnotherRankEndsTheWaitForItsCall) {
  InProcessJob world({});
  world.start();
  world.await_ready(1, 99, /*all_ranks=*/true);
  world.write_grads(0, 1);
  world.post(0, 1);
  ASSERT_FALSE(world.ports.told.empty());
  EXPECT_EQ(world.ports.told.back().code, Code::kProtocol);
  EXPECT_NE(world.ports.told.back().text.find("rank 0 posted step 1 while rank 1"),
            std::string::npos);
}

// Other weights than those of the first load, with the moments that there are.
TEST(Job, AChunkIsLoadedAgainBetweenSteps) {
  InProcessJob world({});
  world.start();
  world.write_grads(0, 1);
  world.post(0, 1);
  shm::LoadChunk message{};
  message.chunk = 1;
  EXPECT_EQ(world.job.load_chunk(world.rank(0), message).code(), Code::kProtocol)
      << "while a step waits for another rank";
  world.write_grads(1, 1);
  world.post(1, 1);
  world.run_workers();
  const auto moment = [&] { return *world.rank(0).memory->moment(0, 1, 0); };
  const float before = moment();
  EXPECT_NE(before, 0);
  auto* const slot = reinterpret_cast<float*>(world.rank(0).memory->grads().data() +
                                              world.model.shape.grad_slot_offset(1));
  std::fill_n(slot, world.model.shape.chunk_numel, 0.25f);
  message.last = 1;
  EXPECT_EQ(world.job.load_chunk(world.rank(0), message).code(), Code::kProtocol);
  message.last = 0;
  EXPECT_EQ(world.job.load_chunk(world.rank(1), message).code(), Code::kProtocol);
  ASSERT_TRUE(world.job.load_chunk(world.rank(0), message).ok());
  world.run_workers();
  float value;
  std::memcpy(&value, world.rank(1).memory->param(1, 0), sizeof value);
  EXPECT_EQ(value, 0.25f);
  EXPECT_EQ(moment(), before);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    world.write_grads(rank, 2);
    world.post(rank, 2);
  }
  // The step is committed and in hand: the load comes behind it, whatever the trainer saw first.
  const Status queued = world.job.load_chunk(world.rank(0), message);
  EXPECT_TRUE(queued.ok()) << queued.message();
  world.run_workers();
  EXPECT_EQ(world.header(0).finished_step.load(), 2u);
  EXPECT_EQ(world.rank(0).memory->chunk_record(1).loads_taken.load(), 3u);
}

TEST(Job, OnlyRankZeroLoadsChunksThatThereAre) {
  InProcessJob world({});
  world.claim(0);
  world.claim(1);
  shm::LoadChunk message{};
  message.chunk = 3;
  EXPECT_EQ(world.job.load_chunk(world.rank(0), message).code(), Code::kProtocol);
  message.chunk = 0;
  EXPECT_EQ(world.job.load_chunk(world.rank(1), message).code(), Code::kProtocol);
}

// ---- steps ----

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

// ---- a second backward pass that nobody declared ----

TEST(Job, TheSecondGradientOfAStepIsSummedOnceThereIsMemoryForIt) {
  InProcessJob world({.norms = false});
  world.start();
  Reference reference(world.model);
  for (uint32_t step = 1; step <= 2; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish(rank, step).ok());
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
      ASSERT_TRUE(world.publish(rank, step, 2).ok());
    }
    for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, step);
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
  InProcessJob declared({.accumulate = 2}), late({});
  declared.start();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(declared.publish(rank, 1).ok());
  declared.run_workers();
  declared.post(0, 1);
  ASSERT_TRUE(declared.publish(1, 1, 2).ok());
  declared.run_workers();
  declared.post(1, 1);
  declared.run_workers();

  late.start();
  late.write_grads(0, 1);
  late.post(0, 1);
  late.write_grads(1, 1);
  ASSERT_TRUE(late.request_sums(1).ok());
  late.fill_sums();
  late.run_workers();
  EXPECT_TRUE(late.taken(1));
  ASSERT_TRUE(late.publish(1, 1, 2).ok());
  late.run_workers();
  late.post(1, 1);
  late.run_workers();
  EXPECT_EQ(late.job.machine().finished_step(), 1u);
  EXPECT_TRUE(params_of(late) == params_of(declared));

  InProcessJob without({});  // that can fail: rank 1's first gradients alone
  without.start();
  for (uint32_t rank = 0; rank < 2; ++rank) without.write_grads(rank, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) without.post(rank, 1);
  without.run_workers();
  EXPECT_FALSE(params_of(without) == params_of(declared));
}

// It posted a step ahead of elixird, and runs fewer passes than the other.
TEST(Job, ARankThatPostedAStepAheadKeepsNoOtherWaiting) {
  InProcessJob world({.accumulate = 3});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish(rank, 1).ok());
  world.run_workers();
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, 1);
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
  EXPECT_EQ(world.job.machine().finished_step(), 2u);
}

// Rank 1 is a discard ahead, so the sum that rank 0 waits for will not be. It is told so though
// rank 2 has not come to the step.
TEST(Job, WhoWaitsForASumThatWillNotBeIsTold) {
  for (const bool immediate : {false, true}) {
    InProcessJob world({.model = make_model(ComputeType::kFp32, 3, 2, 256),
                        .accumulate = 2,
                        .immediate = immediate});
    world.start();
    Reference reference(world.model);
    for (const uint32_t rank : {0u, 1u}) {
      if (immediate) world.open(rank, 1);
      if (rank == 1) world.discards[1] = 1;
      ASSERT_TRUE(world.publish(rank, 1).ok());
    }
    world.run_workers();
    EXPECT_TRUE(world.taken(0));
    EXPECT_FALSE(world.taken(1));
    world.discards[0] = world.discards[2] = 1;
    if (immediate) world.open(2, 1);
    for (const uint32_t rank : {0u, 2u}) ASSERT_TRUE(world.publish(rank, 1).ok());
    world.run_workers();
    for (uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(world.taken(rank));
      ASSERT_TRUE(world.publish(rank, 1, 2).ok());
    }
    world.run_workers();
    for (uint32_t rank = 0; rank < 3; ++rank) world.post(rank, 1);
    world.run_workers();
    reference.step(make_record(1, 3), 2);
    EXPECT_TRUE(world.equals(reference));
  }
}

TEST(Job, WithoutMemoryForSumsTheJobEnds) {
  InProcessJob world({});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish(rank, 1).ok());
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
  InProcessJob world({});
  world.start();
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish(rank, 1).ok());
  ASSERT_TRUE(world.request_sums(0).ok());
  world.job.lose_rank(world.rank(1));
  EXPECT_EQ(world.ports.overs, 0);
  EXPECT_TRUE(world.ports.fill_progress->cancelled.load());
  world.job.sums_filled(error(Code::kUnavailable, "cancelled"));
  EXPECT_EQ(world.ports.overs, 1);
  expect_told(world.ports, 0, Code::kPeerLost, "died");
}

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

// ---- memory on its way, timeouts, stops ----

TEST(Job, WaitsForMemoryThatIsOnItsWayAndCancelsIt) {
  InProcessJob world({});
  world.claim(0);
  world.claim(1);
  world.reserve(0);
  const std::shared_ptr<FillProgress> progress = world.rank(1).reservation->progress;
  world.job.lose_rank(world.rank(0));
  EXPECT_TRUE(progress->cancelled.load());
  EXPECT_EQ(world.ports.overs, 0);
  world.job.reserved(world.rank(1), Status(Code::kUnavailable, "cancelled"));
  EXPECT_EQ(world.ports.overs, 1);
  expect_told(world.ports, 1, Code::kPeerLost, "died");  // the first reason, not this one
}

TEST(Job, MemoryThatCannotBeHadEndsTheJob) {
  InProcessJob world({});
  world.claim(0);
  world.job.reserved(world.rank(0), Status(Code::kResourceExhausted, "no room"));
  expect_told(world.ports, 0, Code::kResourceExhausted, "no room");
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(Job, NamesTheRankThatDoesNotCome) {
  constexpr int64_t kSecond = 1'000'000'000;
  InProcessJob world({});
  world.claim(0);
  const int64_t late_ns = monotonic_ns() + 61 * kSecond;
  world.job.check_timeout(late_ns, 60);  // the rank waits for its memory, not we for it
  EXPECT_EQ(world.ports.overs, 0);
  world.reserve(0);
  world.job.check_timeout(late_ns + 59 * kSecond, 60);
  EXPECT_EQ(world.ports.overs, 0);
  world.job.check_timeout(late_ns + 61 * kSecond, 60);
  EXPECT_EQ(world.ports.overs, 1);
  ASSERT_EQ(world.ports.told.size(), 1u);
  EXPECT_EQ(world.ports.told[0].cause, 1u);
  expect_told(world.ports, 0, Code::kTimedOut, "rank 1 of job 'job'");
}

TEST(Job, AStopTellsEveryRank) {
  InProcessJob world({});
  world.start();
  world.job.stop();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    expect_told(world.ports, rank, Code::kUnavailable, "elixird was stopped");
    EXPECT_EQ(world.ports.told[rank].cause, kNoRank);
  }
  EXPECT_EQ(world.ports.overs, 1);
}

}  // namespace
}  // namespace elixir::daemon
