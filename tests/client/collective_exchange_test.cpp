// CollectiveExchange without a model: threads for ranks, the sums of their gradients, and what they
// gather. (Over Gloo's connections: gloo_exchange_test.)

#include "client/exchange/collective_exchange.h"

#include <utility>

#include "tests/client/exchange_case.h"
#include "tests/client/thread_group.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

// A block that does not wait for its downloads is written while the thread that publishes reads it:
// a race on purpose, which the thread sanitizer would report.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSeesRaces = true;
#else
constexpr bool kSeesRaces = false;
#endif

class ThreadRank final : public RankGroup {
 public:
  explicit ThreadRank(std::unique_ptr<CollectiveGroup> group) : group_(std::move(group)) {}
  CollectiveGroup& group() override { return *group_; }

 private:
  const std::unique_ptr<CollectiveGroup> group_;
};

class CollectiveExchangeTest : public WithElixird {
 protected:
  static ExchangeOutcome run(const ExchangeCase& of, bool lazily, const LazyFaults& faults = {}) {
    ThreadGroups groups(of.ranks);
    return run(of, lazily, groups, faults);
  }
  static ExchangeOutcome run(const ExchangeCase& of, bool lazily, ThreadGroups& groups,
                             const LazyFaults& faults = {}) {
    const auto rank_group = [&groups](uint32_t rank) {
      return std::make_unique<ThreadRank>(groups.group(rank));
    };
    return lazily ? run_lazily(of, rank_group, faults) : run_at_once(of, rank_group);
  }
  static void expect_reference(const ExchangeCase& of) {
    for (const bool lazily : {true, false}) {
      const ExchangeOutcome outcome = run(of, lazily);
      EXPECT_THAT(outcome.wrong, IsEmpty()) << (lazily ? "lazily" : "at once");
      EXPECT_GT(outcome.compared, 0u);
    }
  }
};

// Ranks give their gradients in different orders; with two blocks most wait aside for their turn.
TEST_F(CollectiveExchangeTest, EveryGatherWaitsForItsUpdate) {
  for (const uint32_t ranks : {2u, 3u}) {
    SCOPED_TRACE(ranks);
    expect_reference({.ranks = ranks});
  }
}

TEST_F(CollectiveExchangeTest, MicroStepsThatWereAnnouncedAreSummed) {
  expect_reference({.ranks = 2, .rules = {.accumulate = 2}, .micro_steps = {2, 2, 1, 3, 2}});
}

TEST_F(CollectiveExchangeTest, MicroStepsThatNobodyAnnouncedAreSummed) {
  expect_reference({.ranks = 3, .micro_steps = {1, 2, 1, 1, 3, 1}});
}

TEST_F(CollectiveExchangeTest, WhatWasDiscardedCountsInNoStep) {
  expect_reference({.ranks = 2, .micro_steps = {1, 1, 1}, .discards_in = 2});
  expect_reference(
      {.ranks = 2, .rules = {.accumulate = 2}, .micro_steps = {2, 2, 2}, .discards_in = 2});
  expect_reference({.ranks = 2, .micro_steps = {1, 3, 1}, .discards_in = 2, .discards = 2});
}

TEST_F(CollectiveExchangeTest, ChunksAreUpdatedBeforeThePost) {
  expect_reference({.ranks = 2, .rules = {.immediate = 1}});
}

TEST_F(CollectiveExchangeTest, ChunksPlacedOnTheGpuAreGatheredToo) {
  for (const uint32_t accumulate : {1u, 2u}) {
    expect_reference({.ranks = 2,
                      .cpu_chunks = 2,
                      .gpu_chunks = 2,
                      .rules = {.accumulate = accumulate},
                      .micro_steps = {1, 2, 1, 3}});
  }
}

// A rank's shard of the sums goes up with its states.
TEST_F(CollectiveExchangeTest, SwingChunksAreUpdatedOnTheDevice) {
  for (const uint32_t ranks : {2u, 3u}) {
    for (ExchangeCase of : swing_cases(ranks)) {
      expect_reference(of);
      of.gpu_chunks = 1;
      expect_reference(of);
    }
  }
}

TEST_F(CollectiveExchangeTest, WhatComesFromOthersIsCounted) {
  constexpr uint32_t kSteps = 4, kChunks = 4;
  const ExchangeOutcome outcome = run({.ranks = 2}, false);
  const uint64_t shard_bytes = 640 * sizeof(float);
  EXPECT_EQ(outcome.gathers, (kSteps + 1) * (kChunks + 1));
  EXPECT_EQ(outcome.d2d_bytes, (outcome.gathers + kSteps * kChunks) * shard_bytes);
}

// On all ranks, or ThreadGroups would say which differ.
TEST_F(CollectiveExchangeTest, InBackwardAGatherGoesBeforeTheReductionThatCameFirst) {
  ThreadGroups groups(2);
  const ExchangeCase of{
      .ranks = 2, .frozen_chunks = 0, .micro_steps = {1, 1, 1, 1}, .gathers_in_backward = true};
  ASSERT_THAT(run(of, false, groups).wrong, IsEmpty());
  const std::vector<std::string> forward = {"G0", "G1", "G2", "G3"};
  const std::vector<std::vector<std::string>> backward = {
      {"G3", "R3", "G2", "R2", "G1", "R1", "G0", "R0"},  // nothing is known of what follows
      {"G3", "G2", "R3", "G1", "R2", "G0", "R1", "R0"},
      {"R3", "R2", "R1", "R0"},  // none follows: the next reduction goes behind the held back one
      {"G3", "R3", "G2", "R2", "G1", "R1", "G0", "R0"},
      {}};
  std::vector<std::string> expected;
  for (const std::vector<std::string>& pass : backward) {
    expected.insert(expected.end(), forward.begin(), forward.end());
    expected.insert(expected.end(), pass.begin(), pass.end());
  }
  EXPECT_EQ(groups.made(), expected);
}

TEST_F(CollectiveExchangeTest, ReductionsThatAreHeldBackChangeNoBit) {
  for (const uint32_t ranks : {1u, 2u, 3u}) {
    for (const uint32_t chunks : {1u, 2u, 4u}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} chunks", ranks, chunks));
      ExchangeCase of{.ranks = ranks,
                      .cpu_chunks = chunks,
                      .micro_steps = {1, 2, 1, 3, 2, 1},
                      .gathers_in_backward = true};
      expect_reference(of);
      of.gpu_chunks = 1;
      of.discards_in = 5;
      expect_reference(of);
    }
  }
  expect_reference({.ranks = 2, .rules = {.immediate = 1}, .gathers_in_backward = true});
}

// Each of these makes a wrong number or an order that the device calls wrong: else the tests above
// would show nothing.
TEST_F(CollectiveExchangeTest, AMissingWaitIsSeen) {
  const ExchangeCase of{.ranks = 2, .micro_steps = {1, 2, 1, 2, 1}};
  ASSERT_THAT(run(of, true).wrong, IsEmpty());
  const auto seen = [&](const LazyFaults& faults) { return !run(of, true, faults).wrong.empty(); };
  EXPECT_TRUE(seen({.compute_ignores_uploads = true}));
  if (!kSeesRaces) {
    EXPECT_TRUE(seen({.compute_ignores_downloads = true}));
  }
  EXPECT_TRUE(seen({.uploads_ignore_compute = true}));
  EXPECT_TRUE(seen({.downloads_ignore_others = true}));
  EXPECT_TRUE(seen({.reductions_ignore_compute = true}));
}

}  // namespace
}  // namespace elixir::test
