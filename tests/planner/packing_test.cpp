#include "planner/chunks/packing.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>

#include "planner/cache/belady.h"
#include "planner/chunks/chunk_search.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/sanitized.h"

namespace elixir::planner {
namespace {

double cpu_seconds() {
  timespec now;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TransformerConfig known(const char* name) {
  const Result<TransformerConfig> config = transformer_config(name);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
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
  TransformerConfig config = known("gpt2-nano");
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
    const ModelProfile profile = testing::gpt_profile(known(name));
    for (const uint64_t gib : {10, 25, 60}) {
      const double start = cpu_seconds();
      const uint64_t numel = least_moving_length(profile, chunk_lengths(profile), gib << 30);
      const double seconds = cpu_seconds() - start;
      if (!testing::kSanitized) {
        EXPECT_LT(seconds, 2) << name;
      }
      const Packing packing = pack(packed_sizes(profile), numel);
      EXPECT_LT(packing.waste_ratio(), 0.04) << name << " " << gib << " GiB, length " << numel;
    }
  }
}

TEST(PackDeathTest, AParameterLongerThanAChunkIsABug) {
  const PackedSize sizes[] = {{.numel = 1000}};
  EXPECT_EQ(pack(sizes, 1000).n_chunks, 1u);
  EXPECT_DEATH(pack(sizes, 512), "a parameter of 1000 elements in chunks of 512");
}

}  // namespace
}  // namespace elixir::planner
