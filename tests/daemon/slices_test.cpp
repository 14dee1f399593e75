#include "daemon/slices.h"

#include <gtest/gtest.h>

#include <numeric>

namespace elixir::daemon {
namespace {

std::vector<uint32_t> count_up(uint32_t n) {
  std::vector<uint32_t> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
}

// Every used element of every chunk is in exactly one slice of its rank's group. Slices are in the
// order of chunks, and found by chunk.
TEST(Slices, CoverEveryUsedElementOnce) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u, 64u}) {
    const shm::Shape shape{
        .type = ComputeType::kBf16, .ranks = ranks, .n_chunks = 3, .chunk_numel = 128 * 9};
    const std::vector<uint64_t> used = {128 * 9, 700, 128};
    std::vector<uint32_t> group_of_rank;
    for (uint32_t rank = 0; rank < ranks; ++rank) group_of_rank.push_back(rank % 2);
    const SliceTable table = cut_slices(shape, used, 100, {count_up(ranks), group_of_rank}, 2);
    std::vector<std::vector<int>> covered(3, std::vector<int>(shape.chunk_numel));
    std::vector<uint32_t> slices_of_chunk(3);
    for (uint32_t group = 0; group < 2; ++group) {
      ASSERT_EQ(table.chunk_first[group].size(), 4u);
      for (uint32_t i = 0; i < table.by_group[group].size(); ++i) {
        const Slice& slice = table.by_group[group][i];
        EXPECT_GE(i, table.chunk_first[group][slice.chunk]);
        EXPECT_LT(i, table.chunk_first[group][slice.chunk + 1]);
        EXPECT_EQ(group, group_of_rank[slice.rank]);
        EXPECT_EQ(slice.begin % shm::kShardAlignNumel, 0u);
        ASSERT_GT(slice.numel, 0u);
        EXPECT_LE(slice.numel, 128u);  // 100 rounded up to whole cache lines
        ++slices_of_chunk[slice.chunk];
        const uint64_t start = shape.shard_begin(slice.rank) + slice.begin;
        ASSERT_LE(start + slice.numel, shape.shard_end(slice.rank));
        for (uint64_t e = start; e < start + slice.numel; ++e) ++covered[slice.chunk][e];
      }
    }
    EXPECT_EQ(slices_of_chunk, table.slices_of_chunk);
    for (uint32_t chunk = 0; chunk < 3; ++chunk) {
      for (uint64_t i = 0; i < shape.chunk_numel; ++i) {
        ASSERT_EQ(covered[chunk][i], i < used[chunk] ? 1 : 0) << chunk << " " << i;
      }
    }
  }
}

// A node that keeps shards 2 and 3 of four: its slices cover these, and a chunk whose parameters
// all lie in the shards of other nodes has one of padding, without which it would never be
// complete.
TEST(Slices, CoverTheShardsOfThisNodeAlone) {
  const shm::Shape shape{.type = ComputeType::kBf16,
                         .exchange = shm::Exchange::kCollective,
                         .ranks = 4,
                         .n_chunks = 2,
                         .chunk_numel = 1024};
  const std::vector<uint64_t> used = {1000, 200};
  const std::vector<uint32_t> shards = {2, 3}, groups = {0, 0};
  const SliceTable table = cut_slices(shape, used, 1 << 20, {shards, groups}, 1);
  ASSERT_EQ(table.by_group[0].size(), 3u);
  EXPECT_EQ(table.slices_of_chunk, (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(table.by_group[0][0].numel, 256u);
  EXPECT_EQ(table.by_group[0][1].numel, 1000u - 768u);
  EXPECT_EQ(table.by_group[0][2].numel, shm::kShardAlignNumel);
}

TEST(Slices, ThreadLimitIsSharedByTheGroups) {
  EXPECT_EQ(group_limits(3, 1), (std::vector<uint32_t>{1, 0, 0}));
  EXPECT_EQ(group_limits(3, 5), (std::vector<uint32_t>{2, 2, 1}));
  EXPECT_EQ(group_limits(3, 0), std::vector<uint32_t>(3, UINT32_MAX)) << "all there will ever be";
}

}  // namespace
}  // namespace elixir::daemon
