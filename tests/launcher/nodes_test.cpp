#include "launcher/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace elixir::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

NodeFlags second_of_two() {
  NodeFlags flags;
  flags.nodes = 2;
  flags.node_rank = 1;
  flags.master_address = "node-a";
  flags.master_port = 29500;
  return flags;
}

Launch launch() {
  Launch launch;
  launch.id = "run-7";
  launch.ranks = 4;
  return launch;
}

std::string refusal(const NodeFlags& flags, uint32_t max_restarts = 0, uint32_t ranks = 4) {
  Launch refused = launch();
  refused.max_restarts = max_restarts;
  refused.ranks = ranks;
  const Status status = place_on_nodes(flags, &refused);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return status.message();
}

TEST(NodesTest, OneNodeNeedsNoFlags) {
  Launch alone = launch();
  ASSERT_TRUE(place_on_nodes({}, &alone).ok());
  EXPECT_EQ(alone.id, "run-7");
  EXPECT_EQ(alone.first_rank(), 0u);
  EXPECT_EQ(alone.all_ranks(), 4u);
  EXPECT_EQ(alone.master_address, "127.0.0.1");
  EXPECT_EQ(alone.master_port, 0);
}

// A script that names the number of nodes works for one of them, too.
TEST(NodesTest, OneNodeMayBeTold) {
  NodeFlags flags = second_of_two();
  flags.nodes = 1;
  flags.node_rank = 0;
  Launch alone = launch();
  alone.max_restarts = 3;
  ASSERT_TRUE(place_on_nodes(flags, &alone).ok());
  EXPECT_EQ(alone.master_address, "node-a");
  EXPECT_EQ(alone.master_port, 29500);
}

TEST(NodesTest, AllNodesHaveOneJobAndFollowEachOther) {
  Launch first = launch(), second = launch();
  first.id = "run-8";  // made on another machine
  NodeFlags flags = second_of_two();
  ASSERT_TRUE(place_on_nodes(flags, &second).ok());
  flags.node_rank = 0;
  ASSERT_TRUE(place_on_nodes(flags, &first).ok());
  EXPECT_EQ(first.job(), second.job());
  EXPECT_EQ(first.first_rank(), 0u);
  EXPECT_EQ(second.first_rank(), 4u);
  EXPECT_EQ(second.all_ranks(), 8u);
  flags.job_id = "another";
  Launch other = launch();
  ASSERT_TRUE(place_on_nodes(flags, &other).ok());
  EXPECT_NE(other.job(), second.job());
}

TEST(NodesTest, WhatIsMissingOrWrongIsNamed) {
  NodeFlags flags = second_of_two();
  flags.node_rank.reset();
  EXPECT_THAT(refusal(flags), HasSubstr("--node-rank"));
  flags = second_of_two();
  flags.master_address.clear();
  EXPECT_THAT(refusal(flags), HasSubstr("--master-addr"));
  flags = second_of_two();
  flags.master_port.reset();
  EXPECT_THAT(refusal(flags), HasSubstr("--master-port"));
  flags = second_of_two();
  flags.node_rank = 2;
  EXPECT_THAT(refusal(flags), AllOf(HasSubstr("--node-rank 2"), HasSubstr("end at 1")));
  flags = NodeFlags();
  flags.node_rank = 1;
  EXPECT_THAT(refusal(flags), HasSubstr("--nnodes 1"));
  EXPECT_THAT(refusal(second_of_two(), /*max_restarts=*/1), HasSubstr("--max-restarts 1"));
  flags = second_of_two();
  flags.nodes = 1000;
  EXPECT_THAT(refusal(flags, 0, /*ranks=*/64), AllOf(HasSubstr("64000"), HasSubstr("4096")));
  flags = second_of_two();
  flags.job_id = std::string(200, 'x');
  EXPECT_THAT(refusal(flags), HasSubstr("--job-id"));
}

}  // namespace
}  // namespace elixir::launcher
