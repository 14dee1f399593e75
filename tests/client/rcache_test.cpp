#include "client/rcache/rcache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <random>
#include <set>

#include "planner/cache/belady.h"

namespace elixir {
namespace {

// One use after the other, each pinned alone. Returns the gathers.
uint64_t run_step(RCache& cache, const std::vector<uint32_t>& chunks) {
  const uint64_t before = cache.gathers();
  for (uint32_t chunk : chunks) {
    EXPECT_TRUE(cache.pin(chunk).has_value());
    cache.unpin(chunk);
  }
  cache.end_step();
  return cache.gathers() - before;
}

std::vector<uint32_t> mirror(uint32_t n) {
  std::vector<uint32_t> chunks;
  for (uint32_t i = 0; i < n; ++i) chunks.push_back(i);
  for (uint32_t i = n; i-- > 0;) chunks.push_back(i);
  return chunks;
}

// The fewest gathers of any policy, as planner_belady_test shows.
uint64_t fewest_gathers(const std::vector<uint32_t>& order, uint32_t blocks) {
  std::vector<std::vector<uint32_t>> steps;
  for (const uint32_t chunk : order) steps.push_back({chunk});
  return planner::simulate_cache(steps, blocks)->misses;
}

TEST(RCache, ForwardAndMirroredBackwardGatherTwiceNLessB) {
  for (uint32_t n = 1; n <= 32; ++n) {
    for (uint32_t b = 1; b <= n; ++b) {
      RCache cache(n, b);
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(run_step(cache, mirror(n)), 2 * n - b) << n << " chunks, " << b << " blocks";
      }
    }
  }
}

TEST(RCache, IsOptimalOnARecordedOrder) {
  std::mt19937 random(7);
  int better_than_first_step = 0;
  for (int round = 0; round < 300; ++round) {
    const uint32_t n = 2 + random() % 5;
    const uint32_t b = 1 + random() % n;
    std::vector<uint32_t> chunks(4 + random() % 12);
    for (uint32_t& chunk : chunks) chunk = random() % n;
    const uint64_t optimum = fewest_gathers(chunks, b);
    RCache cache(n, b);
    const uint64_t recorded = run_step(cache, chunks);
    EXPECT_EQ(run_step(cache, chunks), optimum);
    better_than_first_step += recorded > optimum ? 1 : 0;
  }
  // Least recently used alone is not optimal: the comparison above can fail.
  EXPECT_GT(better_than_first_step, 10);
}

TEST(RCache, ADepartureFallsBackToLeastRecentlyUsed) {
  RCache cache(3, 2);
  run_step(cache, {0, 1, 2, 0, 1, 2});
  const auto use = [&](uint32_t chunk) {
    const auto placement = *cache.pin(chunk);
    cache.unpin(chunk);
    return placement;
  };
  use(1);  // the record says 0
  use(2);
  EXPECT_EQ(use(0).evicted, 1u);
  EXPECT_TRUE(cache.end_step());
}

TEST(RCache, APinnedBlockIsNeverAVictim) {
  RCache cache(4, 2);
  ASSERT_TRUE(cache.pin(0).has_value());
  ASSERT_TRUE(cache.pin(1).has_value());
  EXPECT_FALSE(cache.pin(2).has_value());
  cache.unpin(1);
  EXPECT_EQ(cache.pin(2)->evicted, 1u);
  EXPECT_NE(cache.block_of(0), RCache::kNone);
  EXPECT_EQ(cache.n_pinned(), 2u);
}

TEST(RCache, PinsAreCounted) {
  RCache cache(2, 1);
  EXPECT_EQ(cache.pin(0)->presence, RCache::Presence::kMissing);
  EXPECT_EQ(cache.pin(0)->presence, RCache::Presence::kHere);
  cache.unpin(0);
  EXPECT_FALSE(cache.pin(1).has_value());
  cache.unpin(0);
  EXPECT_EQ(cache.pin(1)->evicted, 0u);
}

TEST(RCache, AnAbandonedBlockIsFree) {
  RCache cache(2, 1);
  cache.pin(0);
  cache.abandon(0);
  EXPECT_EQ(cache.block_of(0), RCache::kNone);
  const auto placement = cache.pin(1);
  EXPECT_EQ(placement->evicted, RCache::kNone);
  EXPECT_EQ(placement->presence, RCache::Presence::kMissing);
}

TEST(RCache, AStepLeavesEveryBlockFree) {
  RCache cache(3, 3);
  run_step(cache, {0, 1, 2});
  for (uint32_t chunk = 0; chunk < 3; ++chunk) EXPECT_EQ(cache.block_of(chunk), RCache::kNone);
  EXPECT_EQ(run_step(cache, {0, 1, 2}), 3u);  // stale: gathered anew
}

// What an engine does: operators read a few chunks each, and whatever the record allows is fetched
// ahead. Keeps what the blocks hold.
class Engine {
 public:
  Engine(uint32_t n_chunks, uint32_t n_blocks, bool prefetches,
         const RCache::LongBlocks& long_blocks = {})
      : cache_(n_chunks, n_blocks, UINT32_MAX, long_blocks),
        held_(n_blocks + long_blocks.n_blocks, RCache::kNone),
        prefetches_(prefetches) {}

  // False: an operator needed more blocks than there are.
  bool run_operator(const std::vector<uint32_t>& chunks) {
    size_t pinned = 0;
    for (; pinned < chunks.size(); ++pinned) {
      const auto placement = cache_.pin(chunks[pinned]);
      if (!placement) break;
      if (placement->presence == RCache::Presence::kMissing) {
        ++late_;
        held_[placement->block] = chunks[pinned];
      }
      EXPECT_EQ(held_[placement->block], chunks[pinned]);
      cache_.check_invariant();
    }
    while (prefetches_ && cache_.next_fetch()) {
      const uint32_t chunk = *cache_.next_fetch();
      const RCache::Placement placement = cache_.start_fetch();
      held_[placement.block] = chunk;
      ++ahead_;
      cache_.check_invariant();
    }
    for (size_t i = 0; i < pinned; ++i) {
      EXPECT_EQ(held_[cache_.block_of(chunks[i])], chunks[i]);  // not taken for a fetch
      cache_.unpin(chunks[i]);
      cache_.check_invariant();
    }
    return pinned == chunks.size();
  }

  // The gathers of the step.
  uint64_t run_step(const std::vector<std::vector<uint32_t>>& operators) {
    const uint64_t before = cache_.gathers();
    late_ = ahead_ = 0;
    for (const auto& chunks : operators) EXPECT_TRUE(run_operator(chunks));
    cache_.end_step();
    return cache_.gathers() - before;
  }

  uint64_t late() const { return late_; }    // filled when an operator waited
  uint64_t ahead() const { return ahead_; }  // filled before

 private:
  RCache cache_;
  std::vector<uint32_t> held_;
  const bool prefetches_;
  uint64_t late_ = 0, ahead_ = 0;
};

std::vector<std::vector<uint32_t>> random_operators(std::mt19937& random, uint32_t n_chunks,
                                                    uint32_t widest) {
  std::vector<std::vector<uint32_t>> operators(5 + random() % 20);
  for (auto& chunks : operators) {
    const uint32_t width = 1 + random() % widest;
    while (chunks.size() < width) {
      const uint32_t chunk = random() % n_chunks;
      if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);
    }
  }
  return operators;
}

TEST(RCache, FetchingAheadCostsNoGatherMore) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t n = 3 + random() % 10, widest = 1 + random() % 3;
    const uint32_t b = widest + random() % (n - widest + 1);
    const auto operators = random_operators(random, n, widest);
    Engine demand(n, b, false), eager(n, b, true);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(eager.run_step(operators), demand.run_step(operators));
    }
  }
}

// Late are only the fetches whose block is in use until they are needed.
TEST(RCache, WhatHasRoomEarlierIsFetchedAhead) {
  std::mt19937 random(17);
  uint64_t all_late = 0, all_ahead = 0;
  for (int round = 0; round < 500; ++round) {
    const uint32_t n = 3 + random() % 10, b = 2 + random() % (n - 1);
    const auto operators = random_operators(random, n, 1);
    std::vector<uint32_t> order;
    for (const auto& chunks : operators) {
      if (order.empty() || order.back() != chunks[0]) order.push_back(chunks[0]);
    }
    uint64_t without_room = 0;
    for (const planner::CacheFetch& fetch :
         planner::schedule_uses(order, std::vector<uint32_t>(order.size(), 0), b)) {
      without_room += fetch.room_from >= fetch.needed_at ? 1 : 0;
    }
    Engine engine(n, b, true);
    engine.run_step(operators);
    engine.run_step(operators);
    EXPECT_EQ(engine.late(), without_room);
    all_late += engine.late();
    all_ahead += engine.ahead();
  }
  EXPECT_GT(all_late, 0u);
  EXPECT_GT(all_ahead, all_late);
}

// One use of each chunk, in order; how many were gathered.
uint64_t gathered_by(RCache& cache, const std::vector<uint32_t>& order) {
  const uint64_t before = cache.gathers();
  for (const uint32_t chunk : order) {
    while (cache.next_fetch()) cache.start_fetch();
    EXPECT_TRUE(cache.pin(chunk).has_value());
    cache.unpin(chunk);
  }
  cache.end_step();
  return cache.gathers() - before;
}

// Nothing changes them: with a block for every chunk they are fetched once.
TEST(RCache, FrozenChunksStayFromStepToStep) {
  RCache cache(6, 6, 4);
  const std::vector<uint32_t> order = {4, 0, 1, 5, 2, 3, 5, 1, 0, 4};
  EXPECT_EQ(gathered_by(cache, order), 6u);
  const uint32_t block = cache.block_of(4);
  EXPECT_NE(block, RCache::kNone);
  EXPECT_EQ(cache.block_of(0), RCache::kNone);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(gathered_by(cache, order), 4u);
  EXPECT_EQ(cache.block_of(4), block);
  // A chunk that was fetched ahead and not used is not taken for one that is there.
  RCache stale(6, 6, 0);
  gathered_by(stale, order);
  EXPECT_EQ(gathered_by(stale, order), 0u);
}

// With fewer blocks, those stay that a step ends with; each later step gathers what the schedule
// says, and no more than one that begins with empty blocks.
TEST(RCache, FrozenChunksInFewBlocks) {
  std::mt19937 random(5);
  uint64_t saved = 0;
  for (int round = 0; round < 500; ++round) {
    const uint32_t n = 3 + random() % 8, b = 1 + random() % n, trained = random() % n;
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < 3 * n; ++i) {
      const uint32_t chunk = random() % n;
      if (order.empty() || order.back() != chunk) order.push_back(chunk);
    }
    RCache keeps(n, b, trained), forgets(n, b);
    for (int step = 0; step < 5; ++step) {
      const uint64_t fewer = gathered_by(keeps, order), all = gathered_by(forgets, order);
      EXPECT_LE(fewer, all) << round;
      saved += all - fewer;
    }
  }
  EXPECT_GT(saved, 100u);
}

// Without those that `keeps` says no of, and operators that are left without any.
std::vector<std::vector<uint32_t>> only(const std::vector<std::vector<uint32_t>>& operators,
                                        const std::function<bool(uint32_t)>& keeps) {
  std::vector<std::vector<uint32_t>> kept;
  for (const auto& chunks : operators) {
    std::vector<uint32_t> some;
    std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(some), keeps);
    if (!some.empty()) kept.push_back(some);
  }
  return kept;
}

// Each kind of blocks gathers what a cache of its own would, ahead or not, in the step that is
// recorded and in those that repeat it; one that departs from it finds its own chunks.
TEST(RCache, LongBlocksAndOthersAreCachesOfTheirOwnWithOneRecord) {
  std::mt19937 random(19);
  uint64_t all_ahead = 0;
  for (int round = 0; round < 1000; ++round) {
    const uint32_t n = 4 + random() % 10, widest = 1 + random() % 3;
    RCache::LongBlocks long_blocks{.n_blocks = widest + static_cast<uint32_t>(random() % 2)};
    for (uint32_t chunk = 0; chunk < n; ++chunk) {
      long_blocks.is_long.push_back(random() % 3 == 0 ? 1 : 0);
    }
    const auto is_long = [&](uint32_t chunk) { return long_blocks.is_long[chunk] != 0; };
    const auto is_ordinary = [&](uint32_t chunk) { return long_blocks.is_long[chunk] == 0; };
    const uint32_t b = widest + static_cast<uint32_t>(random() % 4);
    Engine both(n, b, true, long_blocks), ordinary(n, b, true),
        in_long(n, long_blocks.n_blocks, true);
    auto operators = random_operators(random, n, widest);
    for (int step = 0; step < 5; ++step) {
      const uint64_t gathers = both.run_step(operators);
      all_ahead += both.ahead();
      if (step == 4) break;
      EXPECT_EQ(gathers, ordinary.run_step(only(operators, is_ordinary)) +
                             in_long.run_step(only(operators, is_long)))
          << round << " " << step;
      if (step == 3) operators = random_operators(random, n, widest);
    }
  }
  EXPECT_GT(all_ahead, 1000u);
}

// A long one whose room comes first waits for those that are needed before it.
TEST(RCache, OfBothKindsWhatIsNeededFirstIsFetchedFirst) {
  RCache cache(6, 2, UINT32_MAX, {.n_blocks = 1, .is_long = {0, 0, 0, 0, 1, 1}});
  const std::vector<uint32_t> order = {4, 0, 1, 2, 3, 5};
  run_step(cache, order);
  std::vector<uint32_t> fetched;
  for (const uint32_t chunk : order) {
    ASSERT_TRUE(cache.pin(chunk).has_value());
    cache.unpin(chunk);
    while (cache.next_fetch()) {
      fetched.push_back(*cache.next_fetch());
      cache.start_fetch();
    }
  }
  EXPECT_EQ(fetched, (std::vector<uint32_t>{0, 1, 5, 2, 3}));
  cache.end_step();
}

TEST(RCache, PinnedLongBlocksLeaveTheOthersFree) {
  RCache cache(4, 1, UINT32_MAX, {.n_blocks = 1, .is_long = {0, 0, 1, 1}});
  ASSERT_TRUE(cache.pin(2).has_value());
  EXPECT_EQ(cache.n_pinned_beside(0), 0u);
  EXPECT_EQ(cache.n_pinned_beside(3), 1u);
  EXPECT_FALSE(cache.pin(3).has_value());
  EXPECT_EQ(cache.pin(0)->block, 0u);
  EXPECT_FALSE(cache.pin(1).has_value());
  EXPECT_EQ(cache.n_pinned(), 2u);
  cache.unpin(2);
  EXPECT_EQ(cache.pin(3)->evicted, 2u);
}

TEST(RCache, AMirroredStepIsFetchedAheadButForItsFirstChunk) {
  for (uint32_t n : {4u, 9u, 32u}) {
    for (uint32_t b = 2; b <= n; ++b) {
      std::vector<std::vector<uint32_t>> operators;
      for (uint32_t chunk : mirror(n)) operators.push_back({chunk});
      Engine engine(n, b, true);
      engine.run_step(operators);
      EXPECT_EQ(engine.run_step(operators), 2 * n - b);
      EXPECT_EQ(engine.late(), 1u) << n << " chunks, " << b << " blocks";
    }
  }
}

// Steps that depart from the record at a random place, with fetches ahead in blocks: run_operator
// checks that each operator finds its own chunks.
TEST(RCache, DeparturesAfterFetchesAheadAreNeverWrong) {
  std::mt19937 random(13);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t n = 3 + random() % 8, widest = 1 + random() % 3;
    const uint32_t b = widest + random() % (n - widest + 1);
    Engine engine(n, b, true);
    std::vector<std::vector<uint32_t>> operators = random_operators(random, n, widest);
    for (int step = 0; step < 6; ++step) {
      engine.run_step(operators);
      if (random() % 2 == 0) continue;
      const auto other = random_operators(random, n, widest);
      operators.resize(random() % operators.size());
      operators.insert(operators.end(), other.begin(), other.end());
    }
  }
}

TEST(RCache, TheFirstUseOfAFetchedChunkIsNoHit) {
  RCache cache(4, 4);
  run_step(cache, {0, 1, 2, 3});
  EXPECT_EQ(cache.next_fetch(), 0u);
  cache.start_fetch();
  EXPECT_EQ(cache.next_fetch(), 1u);
  EXPECT_EQ(cache.pin(0)->presence, RCache::Presence::kFetched);
  EXPECT_EQ(cache.hits(), 0u);
  EXPECT_EQ(cache.pin(0)->presence, RCache::Presence::kHere);
  EXPECT_EQ(cache.hits(), 1u);
}

// Any calls that keep to what they require, fillings that fail among them.
TEST(RCache, TheInvariantHoldsAfterEveryCall) {
  std::mt19937 random(29);
  for (int round = 0; round < 300; ++round) {
    const uint32_t n = 2 + random() % 8, first_frozen = random() % (n + 1);
    RCache cache(n, 1 + random() % n, first_frozen);
    std::multiset<uint32_t> pinned;
    for (int call = 0; call < 200; ++call) {
      const uint32_t chunk = random() % n;
      if (random() % 3 != 0 && !pinned.empty()) {
        const auto last = std::prev(pinned.end());
        EXPECT_EQ(cache.unpin(*last), pinned.count(*last) == 1);
        pinned.erase(last);
      } else if (const auto placement = cache.pin(chunk)) {
        const bool fails = placement->presence == RCache::Presence::kMissing && random() % 4 == 0;
        if (fails) cache.abandon(chunk);
        if (!fails) pinned.insert(chunk);
      }
      if (cache.next_fetch() && random() % 2 == 0) {
        const uint32_t fetched = *cache.next_fetch();
        cache.start_fetch();
        if (random() % 4 == 0) cache.abandon(fetched);
      }
      if (pinned.empty() && random() % 4 == 0) cache.end_step();
      cache.check_invariant();
    }
  }
}

TEST(RCacheDeathTest, WhatNoBlockHoldsIsNeitherUnpinnedNorAbandoned) {
  RCache cache(2, 1);
  EXPECT_DEATH(cache.unpin(0), "no block holds chunk 0");
  EXPECT_DEATH(cache.abandon(1), "no block holds chunk 1");
  EXPECT_DEATH(cache.pin(2), "chunk 2 of 2");
  EXPECT_DEATH(cache.start_fetch(), "nothing can be fetched");
}

TEST(RCacheDeathTest, AChunkIsNotAbandonedAfterItsUse) {
  RCache cache(2, 1);
  cache.pin(0);
  cache.unpin(0);
  EXPECT_DEATH(cache.abandon(0), "after its use");
}

TEST(RCacheDeathTest, UnpinningWhatIsNotPinnedIsABug) {
  RCache cache(2, 1);
  cache.pin(0);
  cache.unpin(0);
  EXPECT_DEATH(cache.unpin(0), "not pinned");
}

}  // namespace
}  // namespace elixir
