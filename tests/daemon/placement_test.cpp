#include "daemon/placement.h"

#include "tests/support/matchers.h"

namespace elixir::daemon {
namespace {

int unknown(int, int) { return 0; }

std::vector<NodeThreads> groups_of(std::vector<uint32_t> threads) {
  std::vector<NodeThreads> groups;
  for (const uint32_t count : threads) {
    groups.push_back({.node = static_cast<int>(groups.size()), .cpus = {}, .threads = count});
  }
  return groups;
}

TEST(GroupOfRank, RanksAreSpreadAndHeardWhereTheyAskForANode) {
  const auto groups = groups_of({2, 2});
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group_of_rank(groups, {.local_rank = rank}, unknown), rank % 2);
    EXPECT_EQ(group_of_rank(groups, {.local_rank = rank, .numa_node = 1}, unknown), 1u);
  }
}

// Memory on the node of a group without a thread for the job would be updated from another node.
TEST(GroupOfRank, NoRankLiesWhereItsJobHasNoThreads) {
  const auto groups = groups_of({2, 2, 2});
  for (uint32_t rank = 0; rank < 6; ++rank) {
    for (const int node : {-1, 0, 1, 2}) {
      const PlaceOfRank one{.workers = 1, .local_rank = rank, .numa_node = node};
      EXPECT_EQ(group_of_rank(groups, one, unknown), 0u) << rank << " asks for " << node;
      const PlaceOfRank two{.workers = 2, .local_rank = rank, .numa_node = node};
      EXPECT_LT(group_of_rank(groups, two, unknown), 2u) << rank << " asks for " << node;
    }
    EXPECT_EQ(group_of_rank(groups, {.workers = 2, .local_rank = rank, .numa_node = 1}, unknown),
              1u);
  }
}

// A node of memory alone, or one whose processors elixird may not use.
TEST(GroupOfRank, ANodeWithoutThreadsIsServedByTheNearest) {
  const auto groups = groups_of({1, 1, 1});
  const auto distance = [](int from, int to) { return from == 7 && to == 1 ? 12 : 20; };
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group_of_rank(groups, {.local_rank = rank, .numa_node = 7}, distance), 1u);
    EXPECT_EQ(group_of_rank(groups, {.local_rank = rank, .numa_node = 7}, unknown), rank);
  }
}

TEST(BytesOffNode, AreThoseOfOtherNodes) {
  const shm::Segment segment = must(shm::Segment::create("test", 3 << 20));
  const shm::Segment* const segments[] = {&segment};
  // The node that the fewest bytes are off is where they lie.
  std::optional<uint64_t> least;
  for (const NodeCpus& node : allowed_nodes()) {
    const std::optional<uint64_t> bytes = bytes_off_node(segments, node.node);
    if (!bytes) GTEST_SKIP() << "the system tells no page's node";
    least = std::min(least.value_or(UINT64_MAX), *bytes);
  }
  EXPECT_LT(*least, segment.bytes());
  EXPECT_GT(bytes_off_node(segments, /*node=*/1000), segment.bytes() / 100 * 99);
}

}  // namespace
}  // namespace elixir::daemon
