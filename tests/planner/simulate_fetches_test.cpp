// The choices of blocks, of operators and of uses, against those of a search through all blocks.

#include <algorithm>
#include <numeric>
#include <random>

#include "planner/cache/fetches.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

using planner::CacheFetch;
using planner::kNone;
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

// planner::schedule_uses, looking through all blocks for each victim: the one whose chunk is used
// farthest on, of those that are never used again the one that was used first.
std::vector<CacheFetch> slow_schedule(const Record& record, std::vector<uint32_t> held) {
  const std::vector<uint32_t>& order = record.order;
  const auto next_use = [&](uint32_t chunk, uint32_t from) {
    return std::find(order.begin() + from, order.end(), chunk);
  };
  std::vector<uint32_t> over_from(held.size(), 0);  // by block, behind its last use
  std::vector<CacheFetch> fetches;
  for (uint32_t i = 0; i < order.size(); ++i) {
    size_t block = std::find(held.begin(), held.end(), order[i]) - held.begin();
    if (block == held.size()) {
      const uint32_t pinned_since = i - std::min(i, record.others_pinned[i]);
      block = std::find(held.begin(), held.end(), kNone) - held.begin();
      const bool has_empty = block < held.size();
      for (size_t other = 0; other < held.size() && !has_empty; ++other) {
        if (over_from[other] > pinned_since) continue;
        const auto next = next_use(held[other], i);
        const auto farthest = block < held.size() ? next_use(held[block], i) : order.begin();
        const bool as_far = next == farthest && over_from[other] < over_from[block];
        if (block == held.size() || next > farthest || as_far) block = other;
      }
      const uint32_t room_from = has_empty ? 0 : over_from[block];
      fetches.push_back({order[i], static_cast<uint32_t>(block), i, room_from});
      held[block] = order[i];
    }
    over_from[block] = i + 1;
  }
  return fetches;
}

// Where an operator needs more chunks than there are blocks.
TEST(SimulateFetches, NoneWhereBlocksDoNotSuffice) {
  const std::vector<uint32_t> order = {0, 1, 2}, others_pinned = {0, 1, 2};
  EXPECT_TRUE(planner::schedule_uses(order, others_pinned, 2).empty());
  EXPECT_EQ(planner::schedule_uses(order, others_pinned, 3).size(), 3u);
  // Blocks that hold other chunks, with a gap between them.
  const std::vector<uint32_t> held = {7, kNone, 2};
  const std::vector<CacheFetch> fetches = planner::schedule_uses(order, others_pinned, 3, held);
  ASSERT_EQ(fetches.size(), 2u);
  EXPECT_EQ(fetches[0].block, 1u);
  EXPECT_EQ(fetches[1].block, 0u);
  EXPECT_EQ(fetches[1].evicted, 7u);
}

// From blocks that hold nothing or what stayed.
TEST(SimulateFetches, AreThoseOfASearchThroughAllBlocks) {
  std::mt19937 random(1);
  for (int i = 0; i < 6000; ++i) {
    const RandomStep step(random);
    const Record& record = step.record;
    std::vector<uint32_t> held(kChunks);
    std::iota(held.begin(), held.end(), 0u);
    std::shuffle(held.begin(), held.end(), random);
    held.resize(i % 2 == 0 ? 0 : random() % (step.blocks + 1));
    std::vector<uint32_t> contents = held;
    contents.resize(step.blocks, kNone);
    const std::vector<CacheFetch> theirs = slow_schedule(record, contents);
    const std::vector<CacheFetch> of_uses =
        planner::schedule_uses(record.order, record.others_pinned, step.blocks, contents);
    const auto ours = must(planner::schedule_fetches(step.uses, step.blocks, held));
    ASSERT_EQ(of_uses.size(), theirs.size()) << i;
    ASSERT_EQ(ours.size(), theirs.size()) << i;
    for (size_t f = 0; f < theirs.size(); ++f) {
      ASSERT_EQ(of_uses[f].chunk, theirs[f].chunk) << i;
      ASSERT_EQ(of_uses[f].block, theirs[f].block) << i;
      ASSERT_EQ(of_uses[f].needed_at, theirs[f].needed_at) << i;
      ASSERT_EQ(of_uses[f].room_from, theirs[f].room_from) << i;
      ASSERT_EQ(ours[f].chunk, theirs[f].chunk) << i;
      ASSERT_EQ(ours[f].needed_at, record.operator_of[theirs[f].needed_at]) << i;
      contents[theirs[f].block] = theirs[f].chunk;
      if (!held.empty()) continue;
      ASSERT_EQ(ours[f].block, theirs[f].block) << i;
      if (theirs[f].room_from == 0) continue;
      // A chunk used by two operators in a row is still pinned by the second one.
      const uint32_t last_operator = record.operator_of[theirs[f].room_from - 1];
      ASSERT_GE(ours[f].room_from, last_operator + 1) << i;
      ASSERT_LE(ours[f].room_from, ours[f].needed_at) << i;
    }
    std::erase(contents, kNone);
    std::vector<uint32_t> after = planner::held_after(ours, held);
    std::sort(contents.begin(), contents.end());
    std::sort(after.begin(), after.end());
    ASSERT_EQ(after, contents) << i;
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
    const auto ours = must(planner::schedule_fetches(
        both,
        planner::CacheBlocks{.blocks = blocks, .long_blocks = long_blocks, .is_long = is_long}));
    ASSERT_TRUE(std::is_sorted(ours.begin(), ours.end(), [](const auto& a, const auto& b) {
      return a.needed_at < b.needed_at;
    }));
    size_t all = 0;
    for (const uint32_t kind : {0u, 1u}) {
      const auto alone =
          must(planner::schedule_fetches(of_kind[kind], kind == 0 ? blocks : long_blocks));
      size_t f = 0;
      for (const CacheFetch& fetch : ours) {
        if (is_long[fetch.chunk] != kind) continue;
        ASSERT_LT(f, alone.size());
        const CacheFetch& theirs = alone[f++];
        ASSERT_EQ(fetch.chunk, theirs.chunk);
        ASSERT_EQ(fetch.block, theirs.block + (kind == 0 ? 0 : blocks));
        ASSERT_EQ(fetch.evicted, theirs.evicted);
        ASSERT_EQ(fetch.needed_at, operators[kind][theirs.needed_at]);
        const uint32_t room_from =
            theirs.room_from == 0 ? 0 : operators[kind][theirs.room_from - 1] + 1;
        ASSERT_EQ(fetch.room_from, room_from);
      }
      ASSERT_EQ(f, alone.size());
      all += f;
    }
    ASSERT_EQ(all, ours.size());
  }
  planner::UseList two;
  two.add(std::vector<uint32_t>{0, 1});
  const std::vector<uint8_t> is_long = {1, 1};
  EXPECT_FALSE(planner::schedule_fetches(two, planner::CacheBlocks{5, 1, is_long}).ok());
  EXPECT_TRUE(planner::schedule_fetches(two, planner::CacheBlocks{0, 2, is_long}).ok());
}

}  // namespace
}  // namespace elixir
