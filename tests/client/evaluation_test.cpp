// Evaluation and generation through the rCache: passes without gradients between the steps.

#include <numeric>
#include <random>
#include <vector>

#include "client/rcache/rcache.h"
#include "planner/cache/fetches.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

using Chunks = std::vector<uint32_t>;
using Use = RCache::Use;

Chunks order_of(const PassRecord& record) { return {record.order().begin(), record.order().end()}; }

// Uses whose pass was known when it began.
uint32_t run(PassRecord& record, const Chunks& chunks) {
  uint32_t known = 0;
  for (const uint32_t chunk : chunks) known += record.touch(chunk, 0) ? 1 : 0;
  return known;
}

TEST(PassRecord, APassIsOverWhenItsFirstChunkComesAgain) {
  PassRecord record;
  EXPECT_EQ(run(record, {0, 1, 2}), 0u);
  EXPECT_FALSE(record.following());
  EXPECT_EQ(run(record, {0, 1, 2}), 1u);
  EXPECT_TRUE(record.following());
  EXPECT_EQ(order_of(record), (Chunks{0, 1, 2}));
  EXPECT_EQ(run(record, {0, 1, 2, 0, 1, 2}), 2u);
  EXPECT_EQ(record.version(), 1u);
}

TEST(PassRecord, AChunkThatComesTwiceInAPassEndsItOnlyAtFirst) {
  PassRecord record;
  const Chunks pass = {0, 1, 0, 2, 3};  // a tied embedding
  for (int i = 0; i < 3; ++i) run(record, pass);
  EXPECT_TRUE(record.following());
  EXPECT_EQ(order_of(record), pass);
}

TEST(PassRecord, AfterTrainingAPassBeginsAnew) {
  PassRecord record;
  run(record, {0, 1, 2});
  record.restart();
  EXPECT_TRUE(record.following());
  EXPECT_EQ(run(record, {0, 1}), 1u);
  record.restart();  // it ended early
  EXPECT_EQ(run(record, {0, 1, 2}), 1u);
  EXPECT_TRUE(record.following());
  EXPECT_EQ(record.version(), 1u);
}

TEST(PassRecord, AnotherPassTakesTheRecordsPlace) {
  PassRecord record;
  for (int i = 0; i < 3; ++i) run(record, {0, 1, 2});
  for (int i = 0; i < 3; ++i) run(record, {3, 4});
  EXPECT_TRUE(record.following());
  EXPECT_EQ(order_of(record), (Chunks{3, 4}));
  for (int i = 0; i < 3; ++i) run(record, {3, 1, 4});
  EXPECT_EQ(order_of(record).size(), 3u);
}

TEST(PassRecord, IsNeverLongerThanItsLimit) {
  PassRecord record(/*most_uses=*/100);
  for (uint32_t i = 0; i < 100'000; ++i) {
    record.touch(i, 0);
    ASSERT_LE(record.order().size(), 100u);
  }
  EXPECT_FALSE(record.following());
  record.restart();
  for (int i = 0; i < 2; ++i) run(record, {0, 1, 2});
  EXPECT_EQ(order_of(record), (Chunks{0, 1, 2}));
}

TEST(PassRecord, IsRightForAnyOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Chunks pass(1 + random() % 12);
    for (uint32_t& chunk : pass) chunk = random() % 5;
    PassRecord record(64);
    for (int i = 0; i < 8; ++i) {
      run(record, pass);
      ASSERT_LE(record.order().size(), 64u);
    }
    // What is followed repeats: its order, over and over, is what came.
    if (!record.following()) continue;
    const Chunks order = order_of(record);
    ASSERT_FALSE(order.empty());
    const uint64_t version = record.version();
    for (int i = 0; i < 3; ++i) run(record, pass);
    if (record.version() == version) EXPECT_TRUE(record.following());
  }
}

// A use by each of the chunks, one after another, with what the record wants fetched meanwhile.
void use_all(RCache& rcache, const Chunks& chunks, Use use) {
  for (const uint32_t chunk : chunks) {
    ASSERT_TRUE(rcache.pin(chunk, use).has_value());
    while (rcache.next_fetch()) rcache.start_fetch();
    rcache.unpin(chunk);
  }
}

Chunks all_of(uint32_t n) {
  Chunks chunks(n);
  std::iota(chunks.begin(), chunks.end(), 0u);
  return chunks;
}

Chunks forward_and_backward(uint32_t n) {
  Chunks chunks = all_of(n);
  chunks.insert(chunks.end(), chunks.rbegin(), chunks.rend());
  return chunks;
}

// The least gathers of any rule for these uses, all known beforehand.
uint64_t belady(const Chunks& order, uint32_t blocks) {
  const std::vector<uint32_t> alone(order.size(), 0);
  return planner::schedule_uses(order, alone, blocks).size();
}

TEST(Evaluation, TwentyPassesOverTenThousandChunksMissAsBeladySays) {
  constexpr uint32_t kChunks = 10'000, kBlocks = 2'500, kPasses = 20;
  RCache rcache(kChunks, kBlocks);
  const Chunks pass = all_of(kChunks);
  Chunks all;
  for (uint32_t i = 0; i < kPasses; ++i) {
    use_all(rcache, pass, Use::kEvaluation);
    all.insert(all.end(), pass.begin(), pass.end());
    rcache.check_invariant();
  }
  const double least = static_cast<double>(belady(all, kBlocks));
  EXPECT_LE(static_cast<double>(rcache.gathers()), 1.02 * least);
  EXPECT_GE(static_cast<double>(rcache.gathers()), least);
}

// With the least recently used as the victim each use of a circle misses: 100 %.
TEST(Evaluation, FetchesAheadFromItsSecondPassOn) {
  constexpr uint32_t kChunks = 40, kBlocks = 10;
  RCache rcache(kChunks, kBlocks);
  const Chunks pass = all_of(kChunks);
  use_all(rcache, pass, Use::kEvaluation);
  uint32_t missed = 0;
  for (const uint32_t chunk : pass) {
    const auto placement = rcache.pin(chunk, Use::kEvaluation);
    missed += placement->presence == RCache::Presence::kMissing ? 1 : 0;
    while (rcache.next_fetch()) rcache.start_fetch();
    rcache.unpin(chunk);
  }
  EXPECT_LE(missed, 2u);
}

TEST(Evaluation, BetweenStepsChangesNothingOfTheirRecord) {
  constexpr uint32_t kChunks = 40, kBlocks = 10;
  const Chunks step = forward_and_backward(kChunks), pass = all_of(kChunks);
  RCache alone(kChunks, kBlocks), rcache(kChunks, kBlocks);
  uint64_t in_steps = 0;
  for (int i = 0; i < 5; ++i) {
    use_all(alone, step, Use::kStep);
    EXPECT_FALSE(alone.end_step());
    const uint64_t before = rcache.gathers();
    use_all(rcache, step, Use::kStep);
    EXPECT_FALSE(rcache.end_step());  // no departure
    in_steps += rcache.gathers() - before;
    for (int k = 0; k < 3; ++k) use_all(rcache, pass, Use::kEvaluation);
    rcache.check_invariant();
  }
  // What an evaluation leaves in blocks need not be gathered again.
  EXPECT_LE(in_steps, alone.gathers());
  EXPECT_LT(in_steps, alone.gathers() - 4 * (kBlocks - 2));
}

TEST(Evaluation, WithinAStepBelongsToTheStep) {
  RCache rcache(8, 4);
  const auto step = [&] {
    use_all(rcache, {0, 1, 2, 3}, Use::kStep);
    use_all(rcache, {4, 5}, Use::kEvaluation);  // a norm of some weights, say
    use_all(rcache, {3, 2, 1, 0}, Use::kStep);
    return rcache.end_step();
  };
  EXPECT_FALSE(step());
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = rcache.gathers();
    EXPECT_FALSE(step());
    EXPECT_EQ(rcache.gathers() - before, belady({0, 1, 2, 3, 4, 5, 3, 2, 1, 0}, 4));
  }
}

TEST(Evaluation, FifteenFrozenChunksAndOneTrainedTakeOneGatherAStep) {
  RCache rcache(16, 16, /*first_frozen=*/1);
  const Chunks step = forward_and_backward(16);
  for (int i = 0; i < 5; ++i) {
    const uint64_t before = rcache.gathers();
    use_all(rcache, step, Use::kStep);
    rcache.end_step();
    EXPECT_EQ(rcache.gathers() - before, i == 0 ? 16u : 1u);
  }
}

// Any mixture: a use never misses its chunk, and the invariant holds.
TEST(Evaluation, InAnyMixture) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const uint32_t n_chunks = 2 + random() % 30, n_blocks = 2 + random() % 10;
    RCache rcache(n_chunks, n_blocks, random() % (n_chunks + 1));
    for (int part = 0; part < 40; ++part) {
      const Use use = random() % 2 == 0 ? Use::kStep : Use::kEvaluation;
      const uint32_t uses = random() % (2 * n_chunks);
      for (uint32_t i = 0; i < uses; ++i) {
        const uint32_t a = random() % 8 == 0 ? random() % n_chunks : i % n_chunks;
        const uint32_t b = (a + 1) % n_chunks;
        ASSERT_TRUE(rcache.pin(a, use).has_value());
        ASSERT_TRUE(rcache.pin(b, use).has_value());
        while (random() % 4 != 0 && rcache.next_fetch()) rcache.start_fetch();
        ASSERT_NE(rcache.block_of(a), RCache::kNone);
        ASSERT_NE(rcache.block_of(b), RCache::kNone);
        rcache.unpin(a);
        rcache.unpin(b);
      }
      rcache.check_invariant();
      if (random() % 2 == 0) rcache.end_step();
    }
  }
}

}  // namespace
}  // namespace elixir
