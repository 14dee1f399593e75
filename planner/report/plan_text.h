#pragma once

#include <string>

#include "planner/plan/plan.h"
#include "planner/plan/plan_json.h"

namespace elixir::planner {

// Lines for people, each ended by a newline, and one for each thing that was asked beside.
std::string plan_text(const Plan& plan, const PlanExtras& extras = {});

// What was found of swing chunks, or "none: " and why; "": nobody asked for them.
std::string swing_text(const Plan& plan);

// One line: how the measured step compares with the predicted one. The leg that differs most.
struct MeasuredStep {
  double step_s = 0;
  LegSeconds legs = {};
  uint64_t gpu_bytes = 0;  // at most; 0: not known
};
std::string measured_text(const Plan& plan, const MeasuredStep& measured);

}  // namespace elixir::planner
