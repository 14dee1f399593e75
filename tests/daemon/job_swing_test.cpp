// One job in process (job_test.cpp): swing chunks of ranks that are ahead, gone or wrong, and in a
// save; and what SwingUpdates says of the chunks of a step.

#include <gtest/gtest.h>

#include <vector>

#include "daemon/job.h"
#include "daemon/snapshot.h"
#include "daemon/swing_updates.h"
#include "daemon/waits.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using namespace testing;

FakeModel model_of(uint32_t n_chunks, uint32_t n_swing, uint32_t lanes) {
  FakeModel model = make_model(ComputeType::kFp32, 2, n_chunks, 1024);
  model.shape.n_swing_chunks = n_swing;
  model.shape.n_swing_lanes = lanes;
  return model;
}

// Step 1 is judged, and its swing chunks are the trainers' to update.
struct SwingingJob : StartedJob {
  explicit SwingingJob(FakeModel model) : StartedJob({.model = std::move(model)}) { make_step(1); }

  // What the rank writes of a swing chunk, and no word of it.
  void say(uint32_t rank, uint32_t chunk, uint32_t slot, uint32_t step) {
    shm::SwingRecord& record = this->rank(rank).memory->swing_record(chunk);
    record.slot.store(slot);
    record.step.store(step);
  }
  uint32_t param_step(uint32_t chunk) {
    return rank(0).memory->chunk_record(chunk).param_step.load();
  }
};

// It has said goodbye, and lives: it can still write there and ring.
TEST(JobSwing, WhatAGoneRankStillSaysDoesNotEndTheUpdateThatWorkersMakeForIt) {
  SwingingJob world(model_of(3, 1, 1));
  const uint32_t spare = world.model.shape.first_swing_spare(0);
  world.say(1, 2, spare, 1);
  world.job.heard_swing(world.rank(1));
  world.job.detach(world.rank(0));
  ASSERT_NE(world.ports.submitted, nullptr) << "workers take over: else no test";
  world.say(0, 2, spare, 1);
  world.job.heard_swing(world.rank(0));
  world.job.look_at_everything();
  EXPECT_EQ(world.param_step(2), 0u);
  world.run_workers();
  EXPECT_EQ(world.param_step(2), 1u);
  EXPECT_EQ(world.header(1).finished_step.load(), 1u);
}

TEST(JobSwing, TheStatusSaysWhoseUpdateARankWaitsFor) {
  SwingingJob world(model_of(3, 1, 1));
  world.say(1, 2, world.model.shape.first_swing_spare(0), 1);
  world.job.heard_swing(world.rank(1));
  for (const uint32_t rank : {0, 1}) {
    world.header(rank).said_wait.store({static_cast<uint32_t>(shm::WaitsFor::kSwing), 0, 1});
  }
  const std::vector<RankWait> waits = waits_of(world.job);
  ASSERT_EQ(waits.size(), 1u) << "rank 1 has made its own";
  EXPECT_EQ(waits[0].rank, 1u);
  EXPECT_EQ(waits[0].for_what, "updates of swing chunks by rank 0");
  world.job.detach(world.rank(0));
  EXPECT_TRUE(waits_of(world.job).empty()) << "elixird makes it";
}

// Before its own lane is free a rank goes no further than the others let the chunk be published.
TEST(JobSwing, ARankMayBeAheadOfAnotherInEveryLane) {
  SwingingJob world(model_of(6, 6, 2));
  Reference reference(world.model);
  for (uint32_t step = 1; step <= 4; ++step) {
    if (step > 1) world.make_step(step);
    const uint32_t first = step % 2;
    ASSERT_TRUE(world.trainers.rank(first).swing(step).ok());
    for (uint32_t chunk = 0; chunk < 6; ++chunk) EXPECT_EQ(world.param_step(chunk), step - 1);
    ASSERT_TRUE(world.trainers.rank(1 - first).swing(step).ok());
    EXPECT_EQ(world.finished_step(), step);
    reference.step(make_record(step, 2));
    EXPECT_TRUE(world.equals(reference)) << step;
  }
}

TEST(JobSwing, ALostDoorbellCostsATickAndNothingElse) {
  SwingingJob world(model_of(2, 2, 2));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      world.say(rank, chunk, world.model.shape.first_swing_spare(chunk), 1);
    }
  }
  EXPECT_EQ(world.finished_step(), 0u);
  world.job.look_at_everything();
  EXPECT_EQ(world.finished_step(), 1u);
  EXPECT_TRUE(world.ports.told.empty());
}

// Every word that it may write wrongly.
TEST(JobSwing, WhoSaysWhatIsNotSoEndsItsJob) {
  const FakeModel model = model_of(3, 2, 2);
  const uint32_t right = model.shape.first_swing_spare(0);
  const struct {
    const char* what;
    uint32_t slot, step;
    const char* heard;
  } lies[] = {{"another lane's slot", right + 1, 1, "in slot"},
              {"its own slot", model.shape.first_slot(1), 1, "in slot"},
              {"a slot that there is not", 1000000, 1, "in slot"},
              {"a step that is to come", right, 2, "is of step 2"},
              {"a step far off", right, 0xffffffff, "is of step"}};
  for (const auto& lie : lies) {
    SCOPED_TRACE(lie.what);
    SwingingJob world(model);
    world.say(0, 1, lie.slot, lie.step);
    world.job.heard_swing(world.rank(0));
    expect_told(world.ports, 0, Code::kProtocol, lie.heard);
    EXPECT_EQ(world.finished_step(), 0u);
  }
}

// Others may move into copies, they may not.
TEST(JobSwing, ASaveWritesSwingChunksFirstAndHasNoRoomForCopiesOfThem) {
  StartedJob world({.model = model_of(5, 2, 1)});
  const shm::Shape& shape = world.model.shape;
  std::vector<Snapshot::Rank> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back({world.rank(rank).memory.get(), rank});
  }
  Snapshot snapshot(shape, StateSlots(shape), ranks, /*shadow_bytes=*/uint64_t{1} << 30);
  const uint64_t images = round_up(2 * shape.image_bytes(), shm::kSectionAlignBytes);
  EXPECT_EQ(snapshot.shadow_bytes(), 3 * images);
  std::vector<uint32_t> order;
  while (const auto item = snapshot.next()) {
    order.push_back(item->chunk);
    snapshot.written(item->chunk);
  }
  EXPECT_EQ(order, (std::vector<uint32_t>{3, 4, 0, 1, 2}));
  EXPECT_TRUE(snapshot.all_written());
}

TEST(SwingUpdates, OpenInOrderThoseThatWaitForASumLater) {
  SwingUpdates swings(model_of(8, 5, 2).shape, 1);
  for (uint32_t step = 1; step <= 2; ++step) {
    swings.begin(step);
    swings.note_sums(4, /*of_sums=*/true, /*awaits=*/true);
    swings.note_sums(5, /*of_sums=*/true, /*awaits=*/false);
    std::vector<uint32_t> order;
    const auto open_all = [&] {
      for (uint32_t chunk; (chunk = swings.first_to_open()) < swings.end();) {
        EXPECT_EQ(swings.first_to_open(), chunk) << "until it is open";
        swings.open(chunk);
        order.push_back(chunk);
      }
    };
    open_all();
    EXPECT_EQ(order, (std::vector<uint32_t>{3, 5, 6, 7}));
    swings.sums_are_there();
    open_all();
    EXPECT_EQ(order.back(), 4u);
    EXPECT_EQ(order.size(), 5u);
    for (uint32_t chunk = 3; chunk < 8; ++chunk) {
      EXPECT_EQ(swings.is_next(chunk), chunk < 5) << chunk;
      EXPECT_TRUE(swings.note(0, chunk, step));
    }
    EXPECT_FALSE(swings.may_publish(5)) << "3 is before it in its lane";
    for (const uint32_t chunk : {3u, 5u, 4u, 7u, 6u}) {
      ASSERT_TRUE(swings.may_publish(chunk)) << chunk;
      swings.publish(chunk);
    }
    EXPECT_TRUE(swings.over());
    for (uint32_t lane = 0; lane < 2; ++lane) EXPECT_GE(swings.next_in_lane(lane), swings.end());
    swings.end_step();
  }
}

}  // namespace
}  // namespace elixir::daemon
