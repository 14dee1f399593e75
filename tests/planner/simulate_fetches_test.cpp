// The choices of blocks, of operators and of uses, against those of a search through all blocks.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "planner/cache/fetches.h"
#include "tests/planner/slow_belady.h"

namespace elixir {
namespace {

using Steps = std::vector<std::vector<uint32_t>>;

constexpr uint32_t kChunks = 12;

// What client/rcache/use_record has after a step: chunks used in a row count once.
struct Record {
  std::vector<uint32_t> order, others_pinned, operator_of;
};

Record record_of(const Steps& steps) {
  Record record;
  for (uint32_t op = 0; op < steps.size(); ++op) {
    for (uint32_t pinned = 0; pinned < steps[op].size(); ++pinned) {
      const uint32_t chunk = steps[op][pinned];
      if (!record.order.empty() && record.order.back() == chunk) continue;
      record.order.push_back(chunk);
      record.others_pinned.push_back(pinned);
      record.operator_of.push_back(op);
    }
  }
  return record;
}

Steps random_steps(std::mt19937& random, uint32_t most_at_once) {
  Steps steps(1 + random() % 40);
  std::vector<uint32_t> all(kChunks);
  for (uint32_t i = 0; i < kChunks; ++i) all[i] = i;
  for (std::vector<uint32_t>& step : steps) {
    std::shuffle(all.begin(), all.end(), random);
    step.assign(all.begin(), all.begin() + 1 + random() % most_at_once);
  }
  return steps;
}

// A step as both see it, with blocks enough for each of its operators.
struct RandomStep {
  explicit RandomStep(std::mt19937& random) : blocks(1 + random() % kChunks) {
    const Steps steps = random_steps(random, std::min(blocks, 4u));
    record = record_of(steps);
    for (const std::vector<uint32_t>& step : steps) uses.add(step);
  }

  uint32_t blocks;
  Record record;
  planner::UseList uses;
};

void expect_equal(const std::vector<planner::CacheFetch>& ours,
                  const std::vector<test::Fetch>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t f = 0; f < theirs.size(); ++f) {
    ASSERT_EQ(ours[f].chunk, theirs[f].chunk);
    ASSERT_EQ(ours[f].block, theirs[f].block);
    ASSERT_EQ(ours[f].needed_at, theirs[f].needed_at);
    ASSERT_EQ(ours[f].room_from, theirs[f].room_from);
  }
}

// Where an operator needs more chunks than there are blocks.
TEST(SimulateFetches, NoneWhereBlocksDoNotSuffice) {
  const std::vector<uint32_t> order = {0, 1, 2}, others_pinned = {0, 1, 2};
  EXPECT_TRUE(planner::schedule_uses(order, others_pinned, 2).empty());
  EXPECT_EQ(planner::schedule_uses(order, others_pinned, 3).size(), 3u);
  // Blocks that hold other chunks, with a gap between them.
  const std::vector<uint32_t> held = {7, planner::kNone, 2};
  const std::vector<planner::CacheFetch> fetches =
      planner::schedule_uses(order, others_pinned, 3, held);
  ASSERT_EQ(fetches.size(), 2u);
  EXPECT_EQ(fetches[0].block, 1u);
  EXPECT_EQ(fetches[1].block, 0u);
  EXPECT_EQ(fetches[1].evicted, 7u);
}

TEST(SimulateFetches, AreThoseOfASearchThroughAllBlocks) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const RandomStep step(random);
    const Record& record = step.record;
    const std::vector<test::Fetch> theirs =
        test::slow_schedule(record.order, record.others_pinned, kChunks, step.blocks);
    expect_equal(planner::schedule_uses(record.order, record.others_pinned, step.blocks), theirs);
    const auto ours = planner::schedule_fetches(step.uses, step.blocks);
    ASSERT_TRUE(ours.ok());
    ASSERT_EQ(ours->size(), theirs.size()) << i;
    for (size_t f = 0; f < theirs.size(); ++f) {
      ASSERT_EQ((*ours)[f].chunk, theirs[f].chunk) << i;
      ASSERT_EQ((*ours)[f].block, theirs[f].block) << i;
      ASSERT_EQ((*ours)[f].needed_at, record.operator_of[theirs[f].needed_at]) << i;
      if (theirs[f].room_from == 0) continue;
      // A chunk used by two operators in a row is still pinned by the second one.
      const uint32_t last_operator = record.operator_of[theirs[f].room_from - 1];
      ASSERT_GE((*ours)[f].room_from, last_operator + 1) << i;
      ASSERT_LE((*ours)[f].room_from, (*ours)[f].needed_at) << i;
    }
  }
}

// Of two kinds of blocks each has the fetches of a step without the other one's chunks.
TEST(SimulateFetches, OfTwoKindsOfBlocksAreThoseOfEach) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const uint32_t blocks = 4 + random() % 5, long_blocks = 4 + random() % 2;
    std::vector<uint8_t> is_long(kChunks);
    for (uint8_t& one : is_long) one = random() % 3 == 0 ? 1 : 0;
    planner::UseList both, of_kind[2];
    std::vector<uint32_t> operators[2];  // of a kind, in the step
    const Steps steps = random_steps(random, 4);
    for (uint32_t op = 0; op < steps.size(); ++op) {
      both.add(steps[op]);
      std::vector<uint32_t> some[2];
      for (const uint32_t chunk : steps[op]) some[is_long[chunk]].push_back(chunk);
      for (const int kind : {0, 1}) {
        if (some[kind].empty()) continue;
        of_kind[kind].add(some[kind]);
        operators[kind].push_back(op);
      }
    }
    const auto ours = planner::schedule_fetches(
        both,
        planner::CacheBlocks{.blocks = blocks, .long_blocks = long_blocks, .is_long = is_long});
    ASSERT_TRUE(ours.ok());
    ASSERT_TRUE(std::is_sorted(ours->begin(), ours->end(), [](const auto& a, const auto& b) {
      return a.needed_at < b.needed_at;
    }));
    size_t all = 0;
    for (const uint32_t kind : {0u, 1u}) {
      const auto alone = planner::schedule_fetches(of_kind[kind], kind == 0 ? blocks : long_blocks);
      ASSERT_TRUE(alone.ok());
      size_t f = 0;
      for (const planner::CacheFetch& fetch : *ours) {
        if (is_long[fetch.chunk] != kind) continue;
        ASSERT_LT(f, alone->size());
        const planner::CacheFetch& theirs = (*alone)[f++];
        ASSERT_EQ(fetch.chunk, theirs.chunk);
        ASSERT_EQ(fetch.block, theirs.block + (kind == 0 ? 0 : blocks));
        ASSERT_EQ(fetch.evicted, theirs.evicted);
        ASSERT_EQ(fetch.needed_at, operators[kind][theirs.needed_at]);
        const uint32_t room_from =
            theirs.room_from == 0 ? 0 : operators[kind][theirs.room_from - 1] + 1;
        ASSERT_EQ(fetch.room_from, room_from);
      }
      ASSERT_EQ(f, alone->size());
      all += f;
    }
    ASSERT_EQ(all, ours->size());
  }
  planner::UseList two;
  two.add(std::vector<uint32_t>{0, 1});
  const std::vector<uint8_t> is_long = {1, 1};
  EXPECT_FALSE(planner::schedule_fetches(two, planner::CacheBlocks{5, 1, is_long}).ok());
  EXPECT_TRUE(planner::schedule_fetches(two, planner::CacheBlocks{0, 2, is_long}).ok());
}

// Steps that begin with what stayed: as many fetches, of the same chunks, for the same operators.
TEST(SimulateFetches, FromBlocksThatHoldSomething) {
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    const RandomStep step(random);
    const Record& record = step.record;
    std::vector<uint32_t> all(kChunks);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) all[chunk] = chunk;
    std::shuffle(all.begin(), all.end(), random);
    const std::vector<uint32_t> held(all.begin(), all.begin() + random() % (step.blocks + 1));
    std::vector<uint32_t> by_block = held;
    by_block.resize(step.blocks, UINT32_MAX);
    const std::vector<test::Fetch> theirs =
        test::slow_schedule(record.order, record.others_pinned, kChunks, step.blocks, by_block);
    expect_equal(planner::schedule_uses(record.order, record.others_pinned, step.blocks, by_block),
                 theirs);
    const auto ours = planner::schedule_fetches(step.uses, step.blocks, held);
    ASSERT_TRUE(ours.ok());
    ASSERT_EQ(ours->size(), theirs.size()) << i;
    std::vector<uint32_t> contents = by_block;
    for (size_t f = 0; f < theirs.size(); ++f) {
      ASSERT_EQ((*ours)[f].chunk, theirs[f].chunk) << i;
      ASSERT_EQ((*ours)[f].needed_at, record.operator_of[theirs[f].needed_at]) << i;
      contents[theirs[f].block] = theirs[f].chunk;
    }
    std::erase(contents, UINT32_MAX);
    std::vector<uint32_t> after = planner::held_after(*ours, held);
    std::sort(contents.begin(), contents.end());
    std::sort(after.begin(), after.end());
    ASSERT_EQ(after, contents) << i;
  }
}

}  // namespace
}  // namespace elixir
