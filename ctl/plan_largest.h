#pragma once

#include <string>

#include "base/status.h"
#include "ctl/plan_input.h"

namespace elixir::ctl {

struct LargestPlan {
  uint64_t value = 0;  // sequences, tokens of one, or layers
  planner::ModelProfile profile;
  planner::PlannedStep planned;
};

// The most sequences a step ("batch"), tokens a sequence ("seq", up to the model's context) or
// layers ("layers") for which there is a plan, and that plan. Each that is tried is profiled: some
// seconds, told of on a terminal. kInvalidArgument: --profile, which is of one step.
// kResourceExhausted, make_plan()'s: not even one.
Result<LargestPlan> largest_plan(const PlanArguments& arguments, const std::string& what,
                                 const planner::Machine& machine,
                                 const planner::PlanRequest& request);

}  // namespace elixir::ctl
