#include "models/run_health.h"

#include <gtest/gtest.h>

namespace elixir {
namespace {

StepOutcome of(double loss, bool skipped = false, double loss_scale = 1) {
  return {.mean_loss = loss,
          .grad_norm = skipped ? INFINITY : NAN,
          .loss_scale = loss_scale,
          .skipped = skipped};
}

struct Heard {
  Heard(int64_t limit, bool adapts) : health(limit, adapts) {}
  void hear(const StepOutcome& outcome, int times = 1) {
    for (int i = 0; i < times; ++i) health.hear(outcome, ++step);
  }
  RunHealth health;
  uint64_t step = 0;
};

TEST(RunHealth, ARunDivergesAfterSoManyStepsInARow) {
  Heard run(3, false);
  run.hear(of(2));
  run.hear(of(NAN), 2);
  EXPECT_FALSE(run.health.diverged());
  EXPECT_FALSE(run.health.last_good());
  run.hear(of(2));
  EXPECT_TRUE(run.health.last_good());
  run.hear(of(NAN), 2);
  EXPECT_FALSE(run.health.diverged()) << "not in a row";
  run.hear(of(INFINITY));
  EXPECT_TRUE(run.health.diverged());
  run.hear(of(1));
  EXPECT_TRUE(run.health.diverged()) << "what was made meanwhile changes nothing";
  EXPECT_EQ(run.health.text(), "the loss was infinite in the 3 steps 5 to 7");
}

TEST(RunHealth, AStepWithoutAFiniteNormIsBadThoughItsLossIsFinite) {
  Heard run(2, false);
  run.hear(of(2, /*skipped=*/true));
  EXPECT_EQ(run.health.text(), "a gradient was not finite in step 1, whose updates were skipped");
  EXPECT_FALSE(run.health.ends_badly()) << "no weight has changed";
  run.hear(of(2, /*skipped=*/true));
  EXPECT_TRUE(run.health.diverged());
  Heard norm(1, false);
  norm.hear({.mean_loss = 1, .grad_norm = INFINITY});
  EXPECT_TRUE(norm.health.diverged());
}

TEST(RunHealth, AStepThatALossScaleAbove1SkipsCountsOnceTheScaleIs1) {
  Heard run(2, /*adapts=*/true);
  for (double scale = 65536; scale > 1; scale /= 2) run.hear(of(2, true, scale));
  EXPECT_TRUE(run.health.last_good());
  run.hear(of(2, true, 1));
  EXPECT_FALSE(run.health.diverged());
  run.hear(of(2, true, 0.5));
  EXPECT_TRUE(run.health.diverged());
  EXPECT_EQ(run.health.text().find("a gradient was not finite in the 2 steps 17 to 18"), 0u)
      << run.health.text();
}

TEST(RunHealth, ALossThatIsNotFiniteCountsAtAnyScale) {
  Heard run(2, /*adapts=*/true);
  run.hear(of(NAN, true, 65536), 2);
  EXPECT_TRUE(run.health.diverged());
}

// A constant scale never falls, so that waiting for that would be for ever.
TEST(RunHealth, AConstantScaleThatSkipsEveryStepCounts) {
  Heard run(2, /*adapts=*/false);
  run.hear(of(2, true, 65536), 2);
  EXPECT_TRUE(run.health.diverged());
}

TEST(RunHealth, AtItsEndTheLastLossDecides) {
  Heard run(20, false);
  EXPECT_FALSE(run.health.ends_badly());
  run.hear(of(NAN));
  EXPECT_FALSE(run.health.diverged());
  EXPECT_TRUE(run.health.ends_badly());
  run.hear(of(1));
  EXPECT_FALSE(run.health.ends_badly());
}

TEST(RunHealth, ZeroIsNever) {
  Heard run(0, false);
  run.hear(of(NAN), 1000);
  EXPECT_FALSE(run.health.diverged());
  EXPECT_FALSE(run.health.ends_badly());
  EXPECT_FALSE(run.health.last_good()) << "a checkpoint says so all the same";
}

}  // namespace
}  // namespace elixir
