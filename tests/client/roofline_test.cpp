#include "client/plan/roofline.h"

#include <gtest/gtest.h>

#include "planner/choice_names.h"

namespace elixir {
namespace {

constexpr uint64_t kMs = 1'000'000;

StepLegs legs(uint64_t step_ms, uint64_t exposed_ms) {
  StepLegs legs;
  legs.step_ns = step_ms * kMs;
  legs.exposed_ns = exposed_ms * kMs;
  return legs;
}

TEST(Roofline, TheLongestLegBinds) {
  RooflineMeter meter;
  StepLegs step = legs(100, 40);
  step.h2d_ns = 80 * kMs;
  step.h2d_done_bytes = 800;
  step.d2h_ns = 10 * kMs;
  step.d2h_done_bytes = 400;
  step.update_ns = 30 * kMs;
  step.update_numel = 1000;
  const Roofline roofline = meter.add(step);
  EXPECT_DOUBLE_EQ(roofline.compute_ms, 60);
  EXPECT_DOUBLE_EQ(roofline.exposed_ms, 40);
  EXPECT_EQ(roofline.binding, planner::Leg::kH2d);
  EXPECT_DOUBLE_EQ(roofline.time_over_limit, 100.0 / 80);
  EXPECT_STREQ(leg_name(roofline.binding), "h2d");
}

TEST(Roofline, ComputeBindsWhereNothingElseTakesLonger) {
  RooflineMeter meter;
  const Roofline roofline = meter.add(legs(50, 5));
  EXPECT_EQ(roofline.binding, planner::Leg::kCompute);
  EXPECT_DOUBLE_EQ(roofline.time_over_limit, 50.0 / 45);
}

// A link that was slower in this step than it can be: the limit is what it can.
TEST(Roofline, TheLimitIsTheBestRateOfTheRun) {
  RooflineMeter meter;
  StepLegs step = legs(100, 90);
  step.d2h_ns = 40 * kMs;
  step.d2h_done_bytes = 400;
  meter.add(step);
  step.d2h_ns = 80 * kMs;
  const Roofline roofline = meter.add(step);
  EXPECT_DOUBLE_EQ(roofline.d2h_ms, 80);
  EXPECT_EQ(roofline.binding, planner::Leg::kD2h);
  EXPECT_DOUBLE_EQ(roofline.time_over_limit, 100.0 / 40);
}

}  // namespace
}  // namespace elixir
