#include "client/collectives/sum_shards.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/client/rank_values.h"

namespace elixir {
namespace {

// Without this the tests of sums would pass whatever the order.
TEST(SumShards, AnotherOrderGivesOtherBits) {
  constexpr ComputeType kType = ComputeType::kFp32;  // 16 bits are summed without loss as a rule
  EXPECT_NE(plain_sum(3, 1000, kType), plain_sum(3, 1000, kType, /*backwards=*/true));
  EXPECT_EQ(plain_sum(2, 1000, kType), plain_sum(2, 1000, kType, /*backwards=*/true));
}

TEST(SumShards, ManyTilesOnManyThreads) {
  constexpr uint64_t kNumel = 300'001;
  at::set_num_threads(4);
  for (const ComputeType type : kTypes) {
    std::vector<std::byte> a = block_of(0, kNumel, type), b = block_of(1, kNumel, type),
                           c = block_of(2, kNumel, type);
    sum_in_order({a.data(), b.data(), c.data()}, b.data(), kNumel, type);
    EXPECT_EQ(b, plain_sum(3, kNumel, type));
  }
}

// Lengths about a tile's, and none; the result in memory of its own, and in each source's place.
TEST(SumShards, TheResultMayTakeAnySourcesPlace) {
  for (const uint64_t numel :
       {uint64_t{0}, uint64_t{1}, uint64_t{16383}, uint64_t{16384}, uint64_t{16385}}) {
    for (const ComputeType type : kTypes) {
      const std::vector<std::byte> expected = plain_sum(3, numel, type);
      for (size_t place = 0; place <= 3; ++place) {
        std::vector<std::vector<std::byte>> blocks;
        for (uint32_t rank = 0; rank < 3; ++rank) blocks.push_back(block_of(rank, numel, type));
        blocks.emplace_back(blocks[0].size(), std::byte{0x55});
        sum_in_order({blocks[0].data(), blocks[1].data(), blocks[2].data()}, blocks[place].data(),
                     numel, type);
        EXPECT_EQ(blocks[place], expected) << numel << " in place of " << place;
        for (uint32_t rank = 0; rank < 3; ++rank) {
          if (rank == place) continue;
          EXPECT_EQ(blocks[rank], block_of(rank, numel, type)) << "a source was written";
        }
      }
    }
  }
}

TEST(SumShards, OfOneSourceIsTheSource) {
  for (const ComputeType type : kTypes) {
    const std::vector<std::byte> source = block_of(0, 1000, type);
    std::vector<std::byte> out(source.size());
    sum_in_order({source.data()}, out.data(), 1000, type);
    EXPECT_EQ(out, source);
  }
}

}  // namespace
}  // namespace elixir
