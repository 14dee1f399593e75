#include "client/plan/plan_check.h"

#include "planner/report/plan_text.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(PlanCheck, SaysOnceHowTheStepsWereAndWhatDiffersMost) {
  planner::Plan plan;
  plan.predicted.step_s = 0.100;
  plan.predicted.compute_s = 0.080;
  plan.predicted.h2d_s = 0.030;
  PlanCheck check(plan);
  for (uint32_t step = 1; step <= 2 * PlanCheck::kLastStep; ++step) {
    const Roofline measured{
        .compute_ms = 88, .h2d_ms = 60, .step_ms = step < PlanCheck::kFirstStep ? 9000.0 : 150.0};
    const std::optional<planner::MeasuredStep> whole = check.add(step, measured);
    ASSERT_EQ(whole.has_value(), step == PlanCheck::kLastStep) << step;
    if (!whole) continue;
    // The warm-up is left out.
    EXPECT_THAT(measured_text(plan, *whole),
                AllOf(HasSubstr("measured 150.0 ms predicted 100.0 ms ratio 1.50"),
                      HasSubstr("differs most: h2d measured 60.0 ms predicted 30.0 ms")));
  }
}

// Steps that evaluated, or saved, are few; batches of unlike lengths are many.
TEST(PlanCheck, AFewLongStepsDoNotCountAndManyAreNotSteady) {
  planner::Plan plan;
  plan.predicted.step_s = 0.1;
  const auto measured = [&](uint32_t period) {
    PlanCheck check(plan);
    std::optional<planner::MeasuredStep> whole;
    for (uint32_t step = 1; step <= PlanCheck::kLastStep; ++step) {
      const double longer = step % period == 0 ? 2 : 1;
      whole = check.add(
          step,
          {.compute_ms = longer * 80, .h2d_ms = 20, .update_ms = 30, .step_ms = longer * 100});
    }
    return *whole;
  };
  const planner::MeasuredStep few = measured(5), many = measured(2);
  EXPECT_DOUBLE_EQ(few.step_s, 0.1);
  EXPECT_DOUBLE_EQ(few.legs.compute_s, 0.08);
  using planner::Leg;
  EXPECT_THAT(few.steady, Contains(Leg::kCompute));
  EXPECT_THAT(many.steady,
              AllOf(Not(Contains(Leg::kCompute)), Contains(Leg::kH2d), Contains(Leg::kUpdate)));
}

TEST(PlanCheck, CountsWhatCublasTakesOfADevicesMemory) {
  planner::Plan plan;
  plan.predicted.step_s = 1;
  plan.bytes.gpu_rcache = uint64_t{326} << 20;
  PlanCheck check(plan);
  const std::optional<planner::MeasuredStep> whole =
      check.add(PlanCheck::kLastStep, {.step_ms = 1000}, uint64_t{420} << 20);
  ASSERT_TRUE(whole.has_value());
  EXPECT_THAT(measured_text(plan, *whole),
              HasSubstr("GPU memory measured 420.00 MiB predicted 400.00 MiB (workspaces "
                        "74.00 MiB) ratio 1.050"));
}

TEST(PlanCheck, SaysNothingOfAPlanThatPredictsNothing) {
  PlanCheck check{planner::Plan{}};
  EXPECT_FALSE(check.add(PlanCheck::kLastStep, {.step_ms = 1}).has_value());
}

}  // namespace
}  // namespace elixir
