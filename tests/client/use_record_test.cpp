#include "client/rcache/use_record.h"

#include <gtest/gtest.h>

#include <vector>

namespace elixir {
namespace {

bool run_step(UseRecord& record, const std::vector<uint32_t>& chunks) {
  for (uint32_t chunk : chunks) record.touch(chunk);
  return record.end_step();
}

std::vector<uint32_t> order_of(const UseRecord& record) {
  return {record.order().begin(), record.order().end()};
}

TEST(UseRecord, FollowsTheRecordedOrder) {
  UseRecord record;
  EXPECT_FALSE(record.following());
  EXPECT_FALSE(run_step(record, {0, 1, 2, 1, 0}));
  ASSERT_TRUE(record.following());
  EXPECT_FALSE(record.begun());
  record.touch(0);
  EXPECT_TRUE(record.begun());
  record.touch(1);
  EXPECT_EQ(record.position(), 2u);
  EXPECT_TRUE(record.following());
  EXPECT_EQ(order_of(record), (std::vector<uint32_t>{0, 1, 2, 1, 0}));
}

TEST(UseRecord, CountsRepeatedUsesOfOneChunkOnce) {
  UseRecord record;
  run_step(record, {0, 0, 0, 1});
  EXPECT_FALSE(run_step(record, {0, 1, 1}));
  EXPECT_TRUE(record.following());
}

TEST(UseRecord, ADepartureEndsFollowingUntilTheNextStepFollowsTheNewOrder) {
  UseRecord record;
  run_step(record, {0, 1, 2});
  record.touch(0);
  record.touch(2);
  EXPECT_FALSE(record.following());
  record.touch(1);
  EXPECT_TRUE(record.end_step());
  ASSERT_TRUE(record.following());
  EXPECT_EQ(order_of(record), (std::vector<uint32_t>{0, 2, 1}));
  EXPECT_FALSE(run_step(record, {0, 2, 1}));
}

TEST(UseRecord, AShorterAndALongerStepAreDepartures) {
  UseRecord record;
  run_step(record, {0, 1, 2});
  EXPECT_TRUE(run_step(record, {0, 1}));
  EXPECT_FALSE(run_step(record, {0, 1}));
  EXPECT_TRUE(run_step(record, {0, 1, 2}));
  EXPECT_FALSE(run_step(record, {0, 1, 2}));
}

TEST(UseRecord, AStepWithoutUsesIsRecordedAgainLater) {
  UseRecord record;
  EXPECT_FALSE(run_step(record, {}));
  EXPECT_FALSE(record.following());
  EXPECT_FALSE(run_step(record, {0, 1}));
  EXPECT_TRUE(record.following());
}

TEST(UseRecord, AStepOfTooManyUsesIsNotRecorded) {
  UseRecord record(/*most_uses=*/4);
  for (uint32_t i = 0; i < 1000; ++i) record.touch(i % 2);
  EXPECT_FALSE(record.end_step());
  EXPECT_FALSE(record.following());
  EXPECT_TRUE(record.order().empty());
  EXPECT_FALSE(run_step(record, {0, 1}));
  EXPECT_TRUE(record.following());
}

}  // namespace
}  // namespace elixir
