#pragma once

#include <string>

#include "base/status.h"
#include "ctl/plan_input.h"

namespace elixir::ctl {

struct LargestPlan {
  uint64_t value = 0;      // sequences, tokens per sequence, or layers
  uint64_t on_device = 0;  // the largest value if no activation is in host memory
  planner::ModelProfile profile;
  planner::PlannedStep planned;
};

// Finds the largest value of `what` that has a plan, and that plan: sequences per step ("batch"),
// tokens per sequence ("seq", up to the model's context) or layers ("layers"). Each value that is
// tried is profiled. This takes some seconds and shows progress on a terminal. kInvalidArgument:
// --profile is given, which describes only one step. kResourceExhausted, from make_plan(): even the
// smallest value has no plan.
Result<LargestPlan> largest_plan(const PlanArguments& arguments, const std::string& what,
                                 const planner::Machine& machine,
                                 const planner::PlanRequest& request);

}  // namespace elixir::ctl
