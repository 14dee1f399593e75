#include "client/plan/plan_check.h"

#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(PlanCheck, SaysOnceHowTheStepsWereAndWhatDiffersMost) {
  planner::Plan plan;
  plan.predicted.step_s = 0.100;
  plan.predicted.compute_s = 0.080;
  plan.predicted.h2d_s = 0.030;
  PlanCheck check(plan);
  for (uint32_t step = 1; step <= 20; ++step) {
    const Roofline measured{.compute_ms = 88, .h2d_ms = 60, .step_ms = step < 4 ? 9000.0 : 150.0};
    const std::optional<std::string> text = check.add(step, measured);
    ASSERT_EQ(text.has_value(), step == PlanCheck::kLastStep) << step;
    if (!text) continue;
    // The warm-up is left out.
    EXPECT_THAT(*text, AllOf(HasSubstr("measured 150.0 ms predicted 100.0 ms ratio 1.50"),
                             HasSubstr("differs most: h2d measured 60.0 ms predicted 30.0 ms")));
  }
}

TEST(PlanCheck, CountsWhatCublasTakesOfADevicesMemory) {
  planner::Plan plan;
  plan.predicted.step_s = 1;
  plan.bytes.gpu_rcache = uint64_t{326} << 20;
  PlanCheck check(plan);
  const std::optional<std::string> text =
      check.add(PlanCheck::kLastStep, {.step_ms = 1000}, uint64_t{420} << 20);
  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, HasSubstr("GPU memory measured 420.00 MiB predicted 400.00 MiB (workspaces "
                               "74.00 MiB) ratio 1.050"));
}

TEST(PlanCheck, SaysNothingOfAPlanThatPredictsNothing) {
  PlanCheck check{planner::Plan{}};
  EXPECT_FALSE(check.add(PlanCheck::kLastStep, {.step_ms = 1}).has_value());
}

}  // namespace
}  // namespace elixir
