// HostExchange without a model: what elixird makes of its gradients, and what comes back.

#include "client/exchange/host_exchange.h"

#include "tests/client/exchange_case.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

class HostExchangeTest : public WithElixird {
 protected:
  static ExchangeOutcome run_at_once(ExchangeCase of) {
    of.grad_blocks = 0;
    return test::run_at_once(of);
  }
  static void expect_reference(const ExchangeCase& of) {
    for (const bool lazily : {true, false}) {
      const ExchangeOutcome outcome = lazily ? run_lazily(of) : run_at_once(of);
      EXPECT_THAT(outcome.wrong, IsEmpty()) << (lazily ? "lazily" : "at once");
      EXPECT_GT(outcome.compared, 0u);
      EXPECT_EQ(outcome.d2d_bytes, 0u);
    }
  }
};

TEST_F(HostExchangeTest, EveryGatherWaitsForItsUpdate) {
  for (const uint32_t ranks : {1u, 2u, 3u}) {
    SCOPED_TRACE(ranks);
    expect_reference({.ranks = ranks});
  }
}

TEST_F(HostExchangeTest, MicroStepsThatWereAnnouncedAreSummed) {
  expect_reference({.ranks = 2, .rules = {.accumulate = 2}, .micro_steps = {2, 2, 1, 3, 2}});
}

TEST_F(HostExchangeTest, MicroStepsThatNobodyAnnouncedAreSummed) {
  for (const uint32_t ranks : {1u, 2u}) {
    SCOPED_TRACE(ranks);
    expect_reference({.ranks = ranks, .micro_steps = {1, 2, 1, 1, 3, 1}});
  }
}

TEST_F(HostExchangeTest, ChunksMayHaveDifferentNumbersOfThem) {
  expect_reference({.ranks = 2, .micro_steps = {2, 1, 3}, .uneven = true});
}

TEST_F(HostExchangeTest, WhatWasDiscardedCountsInNoStep) {
  expect_reference({.ranks = 2, .micro_steps = {1, 1, 1}, .discards_in = 2});
  expect_reference(
      {.ranks = 2, .rules = {.accumulate = 2}, .micro_steps = {2, 2, 2}, .discards_in = 2});
}

// Which of elixird's looks at the records comes when is left to chance.
TEST_F(HostExchangeTest, ARankMayBeADiscardAhead) {
  for (int times = 0; times < 2; ++times) {
    for (const uint32_t discards : {1u, 2u}) {
      for (const uint32_t norms : {0u, 1u}) {
        SCOPED_TRACE(fmt::format("{} discards, norms {}", discards, norms));
        expect_reference({.ranks = 2 + discards % 2,
                          .rules = {.norms = norms},
                          .micro_steps = {1, 2, 1, 2},
                          .discards_in = 2,
                          .discards = discards,
                          .one_ahead = true});
      }
    }
  }
}

TEST_F(HostExchangeTest, ChunksAreUpdatedBeforeThePost) {
  expect_reference({.ranks = 2, .rules = {.immediate = 1}});
  expect_reference(
      {.ranks = 2, .rules = {.accumulate = 2, .immediate = 1}, .micro_steps = {2, 2, 2}});
}

TEST_F(HostExchangeTest, ChunksPlacedOnTheGpuStayThere) {
  ExchangeCase of{.cpu_chunks = 2, .gpu_chunks = 2, .micro_steps = {1, 2, 1, 3}};
  expect_reference(of);
  const ExchangeOutcome outcome = run_lazily(of);
  EXPECT_EQ(outcome.gathers, 5u * 3) << "of two chunks placed on the CPU and a frozen one";
  of.rules.accumulate = 2;
  expect_reference(of);
}

TEST_F(HostExchangeTest, SwingChunksAreUpdatedOnTheDevice) {
  for (const uint32_t ranks : {1u, 2u}) {
    for (const ExchangeCase& of : swing_cases(ranks)) expect_reference(of);
  }
}

// Each of these makes a wrong number or an order that the device calls wrong: else the tests above
// would show nothing.
TEST_F(HostExchangeTest, AMissingWaitIsSeen) {
  const ExchangeCase of{.micro_steps = {1, 2, 1, 2, 1}};
  ASSERT_THAT(run_lazily(of).wrong, IsEmpty());
  const auto seen = [&](const LazyFaults& faults) {
    return !run_lazily(of, {}, faults).wrong.empty();
  };
  EXPECT_TRUE(seen({.compute_ignores_uploads = true}));
  EXPECT_TRUE(seen({.compute_ignores_downloads = true}));
  EXPECT_TRUE(seen({.uploads_ignore_compute = true}));
  EXPECT_TRUE(seen({.downloads_ignore_others = true}));
  EXPECT_TRUE(seen({.compute_records_early = true}));
}

}  // namespace
}  // namespace elixir::test
