// When the bandwidth is measured again, and what the figure is worth: the clock, the machine's load
// and the measurements are the test's.

#include "daemon/bandwidth_watch.h"

#include <gtest/gtest.h>

namespace elixir::daemon {
namespace {

using Basis = BandwidthWatch::Basis;

constexpr int64_t kS = 1'000'000'000;
constexpr double kMuch = 1e9;  // bytes, beyond all caches
constexpr Bandwidth kLow{.threads = 1, .gb_s = 11}, kHigh{.threads = 2, .gb_s = 68};

class BandwidthWatchTest : public ::testing::Test {
 protected:
  // Looks once a second for so long, from now_s_ on. The second at which a measurement begins; -1.
  int64_t begins_within(int64_t seconds, bool quiet = true, bool idle = true) {
    for (int64_t end_s = now_s_ + seconds; now_s_ < end_s; ++now_s_) {
      if (watch_.begin(now_s_ * kS, quiet, idle)) return now_s_;
    }
    return -1;
  }
  bool ended(const Bandwidth& measured, bool idle = true) {
    return watch_.ended(now_s_ * kS, measured, idle);
  }
  void expect(double gb_s, Basis basis, bool wants) {
    EXPECT_EQ(watch_.gb_s(), gb_s);
    EXPECT_EQ(name_in(kBasisNames, watch_.basis()), std::string(name_in(kBasisNames, basis)));
    EXPECT_EQ(watch_.wants_measurement(), wants);
  }

  BandwidthWatch watch_;
  int64_t now_s_ = 100;
};

TEST_F(BandwidthWatchTest, AFigureOfAnIdleMachineStands) {
  watch_.started(kHigh, /*idle=*/true);
  expect(68, Basis::kMeasured, false);
  EXPECT_EQ(begins_within(1000), -1);
}

TEST_F(BandwidthWatchTest, WithoutAFigureThereIsNothingToMeasureAgain) {
  expect(0, Basis::kNone, false);
  watch_.started({.threads = 2, .gb_s = 0}, /*idle=*/false);
  watch_.moved(70, kMuch);
  expect(0, Basis::kNone, false);
  EXPECT_EQ(begins_within(1000), -1);
}

TEST_F(BandwidthWatchTest, OneOfABusyMachineIsMeasuredAgainAfterTenIdleSeconds) {
  watch_.started(kLow, /*idle=*/false);
  expect(11, Basis::kDisturbed, true);
  EXPECT_EQ(begins_within(100, /*quiet=*/false), -1);
  EXPECT_EQ(begins_within(100, true, /*idle=*/false), -1);
  EXPECT_EQ(begins_within(9), -1);
  EXPECT_EQ(begins_within(1, /*quiet=*/false), -1);  // a job's step: the ten seconds begin again
  const int64_t from_s = now_s_;
  EXPECT_EQ(begins_within(100), from_s + 10);
  EXPECT_TRUE(watch_.measuring());
  EXPECT_EQ(begins_within(100), -1) << "one at a time";
  EXPECT_EQ(watch_.wanted_threads(), 0u);
  EXPECT_TRUE(ended(kHigh));
  expect(68, Basis::kMeasured, false);
  EXPECT_EQ(begins_within(1000), -1);

  // The workers wait for the open step, and are chosen once.
  EXPECT_EQ(watch_.wanted_threads(), 2u);
  EXPECT_TRUE(watch_.waits());
  watch_.chosen();
  EXPECT_EQ(watch_.wanted_threads(), 0u);
  EXPECT_FALSE(watch_.waits());
}

// A launch's elixird starts beside its own trainers, has work from then on, and is never measured
// again: it would keep one worker for good.
TEST_F(BandwidthWatchTest, BesideOtherWorkAllProcessorsHaveAWorkerUntilAMeasurementCounts) {
  EXPECT_EQ(watch_.started(kLow, /*idle=*/true, /*most_threads=*/8), 1u);
  EXPECT_EQ(watch_.started(kLow, /*idle=*/false, /*most_threads=*/8), 8u);
  EXPECT_EQ(watch_.wanted_threads(), 0u);
  ASSERT_GE(begins_within(100), 0);
  EXPECT_TRUE(ended(kHigh));
  EXPECT_EQ(watch_.wanted_threads(), kHigh.threads);
}

TEST_F(BandwidthWatchTest, ANumberOfWorkersThatIsSetStands) {
  EXPECT_EQ(watch_.started({.threads = 3, .gb_s = 11}, /*idle=*/false, /*most_threads=*/0), 3u);
}

TEST_F(BandwidthWatchTest, WhereAsManyWorkersAreEnoughTheyStay) {
  watch_.started({.threads = 2, .gb_s = 11}, /*idle=*/false);
  ASSERT_GE(begins_within(100), 0);
  EXPECT_TRUE(ended(kHigh));
  EXPECT_EQ(watch_.wanted_threads(), 0u);
  EXPECT_FALSE(watch_.waits());
}

TEST_F(BandwidthWatchTest, ALowerFigureOfAnIdleMachineCounts) {
  watch_.started(kHigh, /*idle=*/false);
  ASSERT_GE(begins_within(100), 0);
  EXPECT_TRUE(ended(kLow));
  expect(11, Basis::kMeasured, false);
}

// By a job's work, by others, or given up: then it counts for no more than a lower bound.
TEST_F(BandwidthWatchTest, WhatWasDisturbedIsMeasuredOnceMoreAfterAMinute) {
  watch_.started({.threads = 1, .gb_s = 30}, /*idle=*/false);
  const struct {
    bool job_has_work, others_idle;
    Bandwidth measured;
    double gb_s;
  } kWays[] = {{true, true, kLow, 30},
               {false, false, {.threads = 2, .gb_s = 40}, 40},
               {false, true, {.threads = 2, .gb_s = 0}, 40},
               {true, false, kLow, 40}};
  for (const auto& way : kWays) {
    ASSERT_GE(begins_within(100), 0);
    const int64_t ended_s = now_s_;
    if (way.job_has_work) watch_.disturb();
    EXPECT_FALSE(ended(way.measured, way.others_idle));
    expect(way.gb_s, Basis::kDisturbed, true);
    EXPECT_EQ(watch_.wanted_threads(), 0u);
    EXPECT_EQ(begins_within(60), -1);
    EXPECT_EQ(now_s_, ended_s + 60);
  }
  ASSERT_GE(begins_within(1), 0);
  EXPECT_TRUE(ended(kHigh)) << "what disturbed the one before is over";
}

TEST_F(BandwidthWatchTest, WorkBeforeAMeasurementDoesNotDisturbIt) {
  watch_.started(kLow, /*idle=*/false);
  watch_.disturb();
  ASSERT_GE(begins_within(100), 0);
  EXPECT_TRUE(ended(kHigh));
}

// No update moves more than there is: the figure was wrong.
TEST_F(BandwidthWatchTest, AFasterUpdateRaisesTheFigure) {
  watch_.started(kLow, /*idle=*/false);
  watch_.moved(10, kMuch);
  expect(11, Basis::kDisturbed, true);
  for (const double gb_s : {20, 19, 21}) watch_.moved(gb_s, kMuch);
  expect(21, Basis::kUpdate, true);
  ASSERT_GE(begins_within(100), 0);
  EXPECT_TRUE(ended(kHigh));
  expect(68, Basis::kMeasured, false);
}

TEST_F(BandwidthWatchTest, AFigureOfAnIdleMachineThatIsExceededIsMeasuredOnceMoreAndNotForEver) {
  watch_.started(kHigh, /*idle=*/true);
  watch_.moved(80, kMuch);
  expect(80, Basis::kUpdate, true);
  ASSERT_GE(begins_within(100), 0);
  EXPECT_TRUE(ended(kHigh));
  expect(80, Basis::kUpdate, false);  // an update did move it
  watch_.moved(90, kMuch);
  expect(90, Basis::kUpdate, false);
  EXPECT_EQ(begins_within(1000), -1);
}

// Which an update of few bytes does, in the caches.
TEST_F(BandwidthWatchTest, WhatStaysInTheCachesRaisesNothingAndHasNoShare) {
  watch_.started(kHigh, /*idle=*/true, /*most_threads=*/0, /*cache_bytes=*/1000);
  watch_.moved(200, 2000);
  expect(68, Basis::kMeasured, false);
  EXPECT_FALSE(watch_.share_of(200).has_value());
  EXPECT_EQ(watch_.share_of(34), 0.5);
  EXPECT_EQ(watch_.share_of(68), 1);
  watch_.moved(80, 2001);
  expect(80, Basis::kUpdate, true);
  EXPECT_EQ(watch_.share_of(80), 1);
  EXPECT_EQ(BandwidthWatch().share_of(80), 0) << "not measured";
}

}  // namespace
}  // namespace elixir::daemon
