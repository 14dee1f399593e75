#pragma once

#include <string>

#include "planner/plan/plan.h"
#include "planner/plan/plan_json.h"
#include "planner/report/measured_step.h"

namespace elixir::planner {

// The plan in lines for people, each ended by a newline. Each of `extras` that was asked adds a
// line.
std::string plan_text(const Plan& plan, const PlanExtras& extras = {});

// The result about swing chunks, or "none: " and why. "": nobody asked for them.
std::string swing_text(const Plan& plan);

// Compares a measured step with the predicted one in one line. Names the leg that differs most, and
// each rate that was off (legs_off()).
std::string measured_text(const Plan& plan, const MeasuredStep& measured);

}  // namespace elixir::planner
