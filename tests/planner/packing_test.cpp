#include "planner/chunks/packing.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "planner/cache/belady.h"
#include "planner/chunks/chunk_search.h"
#include "tests/planner/gpt_profile.h"
#include "tests/support/sanitized.h"

namespace elixir::planner {
namespace {

double cpu_seconds() {
  timespec now;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(Packing, AParameterThatDoesNotFitClosesTheChunk) {
  const PackedSize sizes[] = {{300}, {200}, {128}, {600}, {100}};
  const Packing packing = pack(sizes, 640);
  EXPECT_EQ(packing.n_chunks, 4u);
  EXPECT_EQ(packing.places[0].chunk, 0u);
  EXPECT_EQ(packing.places[1].chunk, 0u);
  EXPECT_EQ(packing.places[1].offset, 384u);
  EXPECT_EQ(packing.places[2].chunk, 1u);
  EXPECT_EQ(packing.places[3].chunk, 2u);  // 600, filled up to 640
  EXPECT_EQ(packing.places[4].chunk, 3u);
  EXPECT_EQ(packed_length(sizes, 640).chunks, packing.total_chunks());
  // The shortest length that packs alike.
  const uint64_t tight = packed_length(sizes, 640).chunk_numel;
  EXPECT_EQ(pack(sizes, tight).total_chunks(), packing.total_chunks());
  EXPECT_EQ(tight, 640u);  // what 600 elements take
}

TEST(Packing, SharedParametersLieApartAndFrozenOnesLast) {
  const PackedSize sizes[] = {
      {100}, {100, /*apart=*/true}, {100}, {100, false, /*frozen=*/true}, {100}};
  const Packing packing = pack(sizes, 1024);
  EXPECT_EQ(packing.n_chunks, 3u);
  EXPECT_EQ(packing.n_frozen_chunks, 1u);
  EXPECT_EQ(packing.places[0].chunk, 0u);
  EXPECT_EQ(packing.places[1].chunk, 1u);
  EXPECT_EQ(packing.places[2].chunk, 2u);
  EXPECT_EQ(packing.places[3].chunk, 3u);
  EXPECT_EQ(packing.places[4].chunk, 2u);
  EXPECT_EQ(packing.numel, (std::vector<uint64_t>{100, 100, 200, 100}));
  EXPECT_NEAR(packing.waste_ratio(), 4 * 1024.0 / 500 - 1, 1e-12);
}

TEST(Packing, ACheckpointedRegionIsOneOperator) {
  ModelProfile profile;
  profile.params = {{"a", 100}, {"b", 100}, {"c", 100}};
  profile.steps = {{0}, {1}, {1}, {2}, {2}, {0}};
  profile.checkpoint_regions = {{1, 3}};
  const Packing packing = pack(packed_sizes(profile), 128);
  using Uses = std::vector<std::vector<uint32_t>>;
  EXPECT_EQ(chunks_of_regions(profile, packing), (Uses{{0}, {1, 2}, {2}, {0}}));
  EXPECT_EQ(chunks_of_steps(profile, packing), (Uses{{0}, {1}, {1}, {2}, {2}, {0}}));
}

// Elixir v2, section 4.1: the length that moves least, the smallest on ties; here by trying every
// multiple of the alignment.
TEST(ChunkSearch, FindsWhatEveryLengthTriedByHandFinds) {
  TransformerConfig config = *transformer_config("gpt2-nano");
  config.width = 64;  // so that every multiple of the alignment is among the lengths that are tried
  config.mlp_width = 256;
  config.layers = 3;
  const ModelProfile profile = testing::gpt_profile(config);
  const std::vector<PackedSize> sizes = packed_sizes(profile);
  for (const uint64_t budget : {uint64_t{1} << 17, uint64_t{1} << 18, uint64_t{1} << 30}) {
    const uint64_t found = least_moving_length(profile, chunk_lengths(profile), budget);
    uint64_t longest = 0;
    for (const PackedSize& size : sizes) longest = std::max(longest, size.numel);
    const auto moved = [&](uint64_t numel) {
      const Packing packing = pack(sizes, numel);
      const auto uses = chunks_of_regions(profile, packing);
      uint64_t blocks = 1;
      for (const auto& chunks : uses) blocks = std::max<uint64_t>(blocks, chunks.size());
      blocks = std::clamp<uint64_t>(budget / (numel * profile.dtype_bytes()), blocks,
                                    std::max<uint64_t>(blocks, packing.total_chunks()));
      return simulate_cache(uses, static_cast<uint32_t>(blocks))->moved * numel;
    };
    for (uint64_t numel = longest; numel <= 2 * longest; numel += kAlignNumel) {
      EXPECT_GE(moved(numel), moved(found)) << numel << " against " << found;
      if (numel < found) {
        EXPECT_GT(moved(numel), moved(found)) << numel;
      }
    }
  }
}

// Elixir v2, table 6.
TEST(ChunkSearch, WastesLittleAndTakesLittle) {
  for (const char* name : {"gpt2-4b", "gpt2-10b", "gpt2-15b", "gpt2-20b"}) {
    const ModelProfile profile = testing::gpt_profile(*transformer_config(name));
    for (const uint64_t gib : {10, 25, 60}) {
      const double start = cpu_seconds();
      const uint64_t numel = least_moving_length(profile, chunk_lengths(profile), gib << 30);
      const double seconds = cpu_seconds() - start;
      if (!kSanitized) {
        EXPECT_LT(seconds, 2) << name;
      }
      const Packing packing = pack(packed_sizes(profile), numel);
      EXPECT_LT(packing.waste_ratio(), 0.04) << name << " " << gib << " GiB, length " << numel;
    }
  }
}

TEST(Packing, AParameterLongerThanAChunkHasChunksToItself) {
  const PackedSize sizes[] = {{100}, {1000}, {100}, {200}, {700, false, /*frozen=*/true}, {50}};
  const Packing packing = pack(sizes, 512);
  EXPECT_EQ(packing.n_chunks, 4u);
  EXPECT_EQ(packing.n_frozen_chunks, 2u);
  EXPECT_EQ(packing.places[1], (PackedPlace{1, 0}));
  EXPECT_EQ(packing.places[2], (PackedPlace{3, 0}));  // behind both chunks of the one before
  EXPECT_EQ(packing.places[5], (PackedPlace{3, 384}));
  EXPECT_EQ(packing.places[4], (PackedPlace{4, 0}));
  EXPECT_EQ(packing.numel, (std::vector<uint64_t>{100, 512, 488, 350, 512, 188}));
  EXPECT_EQ(packing.run, (std::vector<uint32_t>{1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(packing.is_long, (std::vector<uint8_t>{0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(packing.long_numel(), 1024u);
  EXPECT_EQ(packing.whole_runs(2), 1u);
  EXPECT_EQ(packing.whole_runs(3), 3u);
  EXPECT_EQ(packing.whole_runs(4), 4u);
  EXPECT_EQ(pack(sizes, 1024).long_numel(), 0u);
  EXPECT_EQ(pack(sizes, 1024).whole_runs(1), 1u);
}

// The shortest length that packs alike leaves every run its number of chunks.
TEST(Packing, AShorterLengthPacksLongParametersAlike) {
  std::mt19937 random(23);
  for (int round = 0; round < 2000; ++round) {
    std::vector<PackedSize> sizes(1 + random() % 12);
    for (PackedSize& size : sizes) {
      size = {.numel = 1 + random() % (random() % 4 == 0 ? 9000 : 900),
              .own_chunk = random() % 8 == 0,
              .frozen = random() % 5 == 0};
    }
    const uint64_t numel = kAlignNumel * (1 + random() % 20);
    const Packing packing = pack(sizes, numel);
    const PackedLength packed = packed_length(sizes, numel);
    ASSERT_EQ(packed.chunks, packing.total_chunks());
    ASSERT_LE(packed.chunk_numel, numel);
    const Packing shorter = pack(sizes, packed.chunk_numel);
    ASSERT_EQ(shorter.places, packing.places) << numel << " and " << packed.chunk_numel;
    ASSERT_EQ(shorter.run, packing.run);
    ASSERT_EQ(
        std::accumulate(packing.numel.begin(), packing.numel.end(), uint64_t{0}),
        std::accumulate(sizes.begin(), sizes.end(), uint64_t{0},
                        [](uint64_t sum, const PackedSize& size) { return sum + size.numel; }));
  }
}

}  // namespace
}  // namespace elixir::planner
