#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "client/plan/roofline.h"
#include "planner/plan/plan.h"
#include "planner/report/measured_step.h"

namespace elixir {

// Measures the steps that are compared with the predicted one.
class PlanCheck {
 public:
  static constexpr uint32_t kFirstStep = 6;  // earlier steps warm up
  static constexpr uint32_t kLastStep = 20;

  explicit PlanCheck(planner::Plan plan) : plan_(std::move(plan)) {}

  // Call it for each step, in order. gpu_bytes: the peak of the device's memory so far (0: not
  // known). The call for kLastStep returns the median of the steps, all others nothing. So a step
  // that also evaluated or saved does not count.
  std::optional<planner::MeasuredStep> add(uint32_t step, const Roofline& measured,
                                           uint64_t gpu_bytes = 0);

  const planner::Plan& plan() const { return plan_; }

 private:
  const planner::Plan plan_;
  std::vector<Roofline> steps_;
};

}  // namespace elixir
