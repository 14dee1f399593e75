#include "client/rcache/use_record.h"

#include <gtest/gtest.h>

#include <vector>

namespace elixir {
namespace {

bool run_step(UseRecord& record, const std::vector<uint32_t>& chunks) {
  for (uint32_t chunk : chunks) record.touch(chunk);
  return record.end_step();
}

TEST(UseRecord, FollowsTheRecordedOrder) {
  UseRecord record(3);
  EXPECT_FALSE(record.following());
  EXPECT_FALSE(run_step(record, {0, 1, 2, 1, 0}));
  ASSERT_TRUE(record.following());
  record.touch(0);
  EXPECT_EQ(record.next_use(0), 4u);
  EXPECT_EQ(record.next_use(1), 1u);
  EXPECT_EQ(record.next_use(2), 2u);
  record.touch(1);
  record.touch(2);
  EXPECT_EQ(record.next_use(2), UseRecord::kNever);
  EXPECT_EQ(record.next_use(1), 3u);
}

TEST(UseRecord, CountsRepeatedUsesOfOneChunkOnce) {
  UseRecord record(2);
  run_step(record, {0, 0, 0, 1});
  EXPECT_FALSE(run_step(record, {0, 1, 1}));
  EXPECT_TRUE(record.following());
}

TEST(UseRecord, ADepartureEndsFollowingUntilTheNextStepFollowsTheNewOrder) {
  UseRecord record(3);
  run_step(record, {0, 1, 2});
  record.touch(0);
  record.touch(2);
  EXPECT_FALSE(record.following());
  record.touch(1);
  EXPECT_TRUE(record.end_step());
  ASSERT_TRUE(record.following());
  EXPECT_EQ(record.next_use(2), 1u);
  EXPECT_FALSE(run_step(record, {0, 2, 1}));
}

TEST(UseRecord, AShorterAndALongerStepAreDepartures) {
  UseRecord record(3);
  run_step(record, {0, 1, 2});
  EXPECT_TRUE(run_step(record, {0, 1}));
  EXPECT_FALSE(run_step(record, {0, 1}));
  EXPECT_TRUE(run_step(record, {0, 1, 2}));
  EXPECT_FALSE(run_step(record, {0, 1, 2}));
}

TEST(UseRecord, AStepWithoutUsesIsRecordedAgainLater) {
  UseRecord record(2);
  EXPECT_FALSE(run_step(record, {}));
  EXPECT_FALSE(record.following());
  EXPECT_FALSE(run_step(record, {0, 1}));
  EXPECT_TRUE(record.following());
}

TEST(UseRecordDeathTest, WithoutARecordNothingIsKnownOfTheNextUse) {
  UseRecord record(2);
  EXPECT_DEATH(record.next_use(0), "no record to follow");
  EXPECT_DEATH(record.touch(2), "chunk 2 of 2");
}

}  // namespace
}  // namespace elixir
