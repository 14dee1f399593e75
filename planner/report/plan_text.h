#pragma once

#include <string>

#include "planner/plan/plan.h"
#include "planner/plan/plan_json.h"

namespace elixir::planner {

// Ten lines for people, each ended by a newline, and one for each thing that was asked beside.
std::string plan_text(const Plan& plan, const PlanExtras& extras = {});

// One line: how the measured step compares with the predicted one. The leg that differs most.
struct MeasuredStep {
  double step_s = 0;
  LegSeconds legs = {};
  uint64_t gpu_bytes = 0;  // at most; 0: not known
};
std::string measured_text(const Plan& plan, const MeasuredStep& measured);

}  // namespace elixir::planner
