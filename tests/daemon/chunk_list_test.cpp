// Chunks in an order, which come last and leave from anywhere.

#include "daemon/chunk_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace elixir::daemon {
namespace {

std::vector<uint32_t> chunks_of(const ChunkList& list) {
  std::vector<uint32_t> chunks;
  for (uint32_t chunk = list.first(); chunk != ChunkList::kNone; chunk = list.behind(chunk)) {
    chunks.push_back(chunk);
  }
  return chunks;
}

void expect_has(const ChunkList& list, const std::vector<uint32_t>& chunks) {
  EXPECT_EQ(chunks_of(list), chunks);
  EXPECT_EQ(list.size(), chunks.size());
  EXPECT_EQ(list.first(), chunks.empty() ? ChunkList::kNone : chunks.front());
  EXPECT_EQ(list.last(), chunks.empty() ? ChunkList::kNone : chunks.back());
}

TEST(ChunkList, KeepsTheOrderInWhichChunksCameWhicheverLeaves) {
  constexpr uint32_t kChunks = 6;
  ChunkList list(kChunks);
  std::vector<uint32_t> expected;
  expect_has(list, expected);
  std::mt19937 random(7);
  for (int turn = 0; turn < 1000; ++turn) {
    const auto chunk = static_cast<uint32_t>(random() % kChunks);
    const auto found = std::find(expected.begin(), expected.end(), chunk);
    if (found == expected.end()) {
      list.push_back(chunk);
      expected.push_back(chunk);
    } else {
      list.remove(chunk);
      expected.erase(found);
    }
    expect_has(list, expected);
    if (::testing::Test::HasFailure()) return;
  }
  list.clear();
  expect_has(list, {});
  EXPECT_EQ(list, ChunkList(kChunks));
}

TEST(ChunkListDeathTest, HoldsAChunkOnce) {
  ChunkList list(3);
  list.push_back(1);
  EXPECT_DEATH(list.push_back(1), "chunk 1 is here");
  EXPECT_DEATH(list.push_back(3), "chunk 3");
  EXPECT_DEATH(list.remove(2), "chunk 2 is not here");
}

TEST(ChunkList, OfNoChunksIsEmpty) { expect_has(ChunkList(0), {}); }

}  // namespace
}  // namespace elixir::daemon
