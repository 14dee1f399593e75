#pragma once

#include <string>

#include "planner/plan/plan.h"
#include "planner/plan/plan_json.h"

namespace elixir::planner {

// The plan in lines for people, each ended by a newline. Each of `extras` that was asked adds a
// line.
std::string plan_text(const Plan& plan, const PlanExtras& extras = {});

// The result about swing chunks, or "none: " and why. "": nobody asked for them.
std::string swing_text(const Plan& plan);

// A measured step. measured_text() compares it with the predicted one in one line, and names the
// leg that differs most.
struct MeasuredStep {
  double step_s = 0;
  LegSeconds legs = {};
  uint64_t gpu_bytes = 0;  // the peak; 0: not known
};
std::string measured_text(const Plan& plan, const MeasuredStep& measured);

}  // namespace elixir::planner
