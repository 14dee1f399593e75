#include "planner/cache/belady.h"

#include <algorithm>
#include <bit>
#include <ctime>
#include <map>
#include <random>

#include "planner/cache/fetches.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitized.h"

namespace elixir::planner {
namespace {

using Steps = std::vector<std::vector<uint32_t>>;

uint64_t misses(const Steps& steps, uint32_t blocks) {
  const Result<CacheCount> count = simulate_cache(steps, blocks);
  EXPECT_TRUE(count.ok()) << count.status().message();
  if (!count.ok()) return UINT64_MAX;
  EXPECT_EQ(count->moved, 2 * count->misses);
  return count->misses;
}

// The fewest misses of all choices of victims, every one tried.
class Exhaustive {
 public:
  Exhaustive(const Steps& steps, uint32_t chunks, uint32_t blocks)
      : chunks_(chunks), blocks_(blocks) {
    for (const std::vector<uint32_t>& step : steps) {
      uint32_t needed = 0;
      for (const uint32_t chunk : step) needed |= 1u << chunk;
      needed_.push_back(needed);
    }
  }

  uint32_t fewest(size_t step = 0, uint32_t held = 0) {
    if (step == needed_.size()) return 0;
    const auto [known, is_new] = known_.try_emplace({step, held}, UINT32_MAX);
    if (!is_new) return known->second;
    const uint32_t all = held | needed_[step];
    uint32_t best = UINT32_MAX;
    for (uint32_t kept = 0; kept < 1u << chunks_; ++kept) {
      if ((kept & ~all) != 0 || (needed_[step] & ~kept) != 0) continue;
      if (std::popcount(kept) > static_cast<int>(blocks_)) continue;
      best = std::min(best, fewest(step + 1, kept));
    }
    const auto missing = static_cast<uint32_t>(std::popcount(needed_[step] & ~held));
    return known_[{step, held}] = missing + best;
  }

 private:
  const uint32_t chunks_, blocks_;
  std::vector<uint32_t> needed_;  // by step, a bit for each chunk
  std::map<std::pair<size_t, uint32_t>, uint32_t> known_;
};

struct RandomCase {
  Steps steps;
  uint32_t chunks, blocks;
};

RandomCase random_case(std::mt19937& random) {
  RandomCase c;
  c.chunks = 2 + random() % 5;
  c.blocks = 1 + random() % c.chunks;
  c.steps.resize(1 + random() % 10);
  std::vector<uint32_t> all(c.chunks);
  for (uint32_t i = 0; i < c.chunks; ++i) all[i] = i;
  for (std::vector<uint32_t>& step : c.steps) {
    std::shuffle(all.begin(), all.end(), random);
    step.assign(all.begin(), all.begin() + random() % (c.blocks + 1));
  }
  return c;
}

TEST(Belady, CountsTheExample) {
  const CacheCount count = must(simulate_cache({{0}, {1, 2}, {3}, {3}, {1, 2}, {0}}, 2));
  EXPECT_EQ(count.misses, 6u);
  EXPECT_EQ(count.moved, 12u);
}

TEST(Belady, MovesTwiceWhatDoesNotFitOfForwardAndBackward) {
  for (uint32_t n = 1; n <= 32; ++n) {
    Steps steps;
    for (uint32_t i = 0; i < n; ++i) steps.push_back({i});
    for (uint32_t i = n; i-- > 0;) steps.push_back({i});
    for (uint32_t blocks = 1; blocks <= n; ++blocks) {
      EXPECT_EQ(2 * misses(steps, blocks), 2 * (2 * n - blocks)) << n << ", " << blocks;
    }
  }
}

TEST(Belady, MissesNoMoreThanAnyChoiceOfVictims) {
  std::mt19937 random(1);
  int several_at_once = 0;
  for (int i = 0; i < 10'000; ++i) {
    const RandomCase c = random_case(random);
    several_at_once += std::any_of(c.steps.begin(), c.steps.end(),
                                   [](const auto& step) { return step.size() > 1; });
    ASSERT_EQ(misses(c.steps, c.blocks), Exhaustive(c.steps, c.chunks, c.blocks).fewest()) << i;
  }
  EXPECT_GT(several_at_once, 5000);
}

TEST(Belady, NamesTheStepThatNeedsTooMuch) {
  const Result<CacheCount> count = simulate_cache({{0, 1}, {4, 2, 3}}, 2);
  expect_refused(count.status(), Code::kInvalidArgument, {"step 1 needs 3 chunks"});
  EXPECT_THAT(count.status().message(), HasSubstr("2 blocks"));
}

TEST(Belady, HasNothingToHoldWithoutBlocks) {
  EXPECT_EQ(misses({}, 0), 0u);
  EXPECT_EQ(misses({{}, {}}, 0), 0u);
  EXPECT_FALSE(simulate_cache({{}, {7}}, 0).ok());
}

TEST(Belady, TakesAnyNumbersAndCountsAChunkOfAStepOnce) {
  EXPECT_EQ(misses({{UINT32_MAX}, {5, UINT32_MAX - 1}, {UINT32_MAX}}, 2), 4u);
  EXPECT_EQ(misses({{3, 3}, {3, 3, 3}}, 1), 1u);
}

TEST(Belady, CountsAThousandUsesFarBelowAMillisecond) {
  if (kSanitized) GTEST_SKIP() << "sanitized";
  std::mt19937 random(3);
  Steps steps;
  for (uint32_t i = 0; i < 1000; ++i) steps.push_back({static_cast<uint32_t>(random() % 100)});
  const std::clock_t begin = std::clock();
  constexpr int kTimes = 200;
  for (int i = 0; i < kTimes; ++i) misses(steps, 30);
  const double each_ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kTimes;
  RecordProperty("each_us", static_cast<int>(1e3 * each_ms));
  EXPECT_LT(each_ms, 1.0);
}

// ---- the schedule behind the count ----

UseList uses_of(const Steps& steps) {
  UseList uses;
  for (const std::vector<uint32_t>& step : steps) uses.add(step);
  return uses;
}

TEST(ScheduleFetches, SaysFromWhichOperatorOnABlockHasRoom) {
  const auto fetches = must(schedule_fetches(uses_of({{0}, {1}, {1}, {2}, {0}}), 2));
  ASSERT_EQ(fetches.size(), 3u);
  const CacheFetch& third = fetches[2];  // chunk 0 is used again, chunk 1 is not
  EXPECT_EQ(third.chunk, 2u);
  EXPECT_EQ(third.evicted, 1u);
  EXPECT_FALSE(third.evicted_returns);
  EXPECT_EQ(third.needed_at, 3u);
  EXPECT_EQ(third.room_from, 3u);
}

// Whoever follows the schedule finds every chunk where its operator needs it.
TEST(ScheduleFetches, BringsEveryChunkInTime) {
  std::mt19937 random(4);
  for (int i = 0; i < 1000; ++i) {
    const RandomCase c = random_case(random);
    const auto fetches = must(schedule_fetches(uses_of(c.steps), c.blocks));
    std::vector<uint32_t> held(c.blocks, kNone), last_use(c.blocks, 0);
    size_t next = 0;
    for (uint32_t op = 0; op < c.steps.size(); ++op) {
      for (; next < fetches.size() && fetches[next].needed_at == op; ++next) {
        const CacheFetch& fetch = fetches[next];
        ASSERT_LE(fetch.room_from, op);
        ASSERT_EQ(held[fetch.block], fetch.evicted);
        if (fetch.evicted != kNone) {
          ASSERT_EQ(fetch.room_from, last_use[fetch.block] + 1);
        }
        held[fetch.block] = fetch.chunk;
      }
      for (const uint32_t chunk : c.steps[op]) {
        const auto block = std::find(held.begin(), held.end(), chunk) - held.begin();
        ASSERT_LT(block, c.blocks) << "chunk " << chunk << " at operator " << op;
        last_use[block] = op;
      }
    }
    EXPECT_EQ(next, fetches.size());
  }
}

}  // namespace
}  // namespace elixir::planner
