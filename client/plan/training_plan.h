#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "planner/plan.h"
#include "planner/profile.h"

namespace elixir {

struct PlannedParameter {
  std::string name;
  bool apart = false;  // it has a chunk of its own
};

// A planner's choice for this model, to be carried out.
struct TrainingPlan {
  planner::Plan plan;
  // All parameters by first use; empty: as they are registered.
  std::vector<PlannedParameter> order = {};
};

inline TrainingPlan training_plan(const planner::ModelProfile& profile, planner::Plan plan) {
  TrainingPlan result{std::move(plan), {}};
  for (const planner::ProfiledParameter& param : planner::in_first_use_order(profile).params) {
    result.order.push_back({param.name, param.shared});
  }
  return result;
}

}  // namespace elixir
