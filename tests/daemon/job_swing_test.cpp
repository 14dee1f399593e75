// One job in process (job_test.cpp): swing chunks of ranks that are gone, and in a save; and what
// SwingUpdates says of the chunks of a step.

#include <gtest/gtest.h>

#include <vector>

#include "daemon/job.h"
#include "daemon/snapshot.h"
#include "daemon/swing_updates.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::daemon {
namespace {

using testing::FakeModel;
using testing::InProcessJob;
using testing::make_model;

FakeModel model_of(uint32_t n_chunks, uint32_t n_swing, uint32_t lanes) {
  FakeModel model = make_model(ComputeType::kFp32, 2, n_chunks, 1024);
  model.shape.n_swing_chunks = n_swing;
  model.shape.n_swing_lanes = lanes;
  return model;
}

struct SwingingJob : InProcessJob {
  SwingingJob() : InProcessJob({.model = model_of(3, 1, 1)}) { start(); }

  // The rank says that it has updated the only swing chunk.
  void swing(uint32_t rank, uint32_t step) {
    shm::SwingRecord& record = this->rank(rank).memory->swing_record(kChunk);
    record.slot.store(model.shape.first_swing_spare(0));
    record.step.store(step);
    job.heard_swing(this->rank(rank));
  }
  uint32_t param_step() { return rank(0).memory->chunk_record(kChunk).param_step.load(); }

  static constexpr uint32_t kChunk = 2;
};

// It has said goodbye, and lives: it can still write there and ring.
TEST(JobSwing, WhatAGoneRankStillSaysDoesNotEndTheUpdateThatWorkersMakeForIt) {
  SwingingJob world;
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, 1);
  world.run_workers();
  world.swing(1, 1);
  world.job.detach(world.rank(0));
  ASSERT_NE(world.ports.submitted, nullptr) << "workers take over: else no test";
  world.swing(0, 1);
  world.job.look_at_everything();
  EXPECT_EQ(world.param_step(), 0u);
  world.run_workers();
  EXPECT_EQ(world.param_step(), 1u);
  EXPECT_EQ(world.header(1).finished_step.load(), 1u);
}

// Others may move into copies, they may not.
TEST(JobSwing, ASaveWritesSwingChunksFirstAndHasNoRoomForCopiesOfThem) {
  InProcessJob world({.model = model_of(5, 2, 1)});
  world.start();
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
