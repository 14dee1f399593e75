#pragma once

#include <optional>
#include <string>

#include "planner/machine.h"
#include "planner/plan/plan.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

// Plans of earlier starts, in plan-KEY of cache_folder(): a checksum and the plan's JSON. A restart
// does not search again.

// Equal for equal input to make_plan() by the same build of Elixir.
std::string plan_key(const ModelProfile& profile, const Machine& machine,
                     const PlanRequest& request);

// Empty if there is none, or one that is damaged.
std::optional<Plan> load_cached_plan(const std::string& key);

// Keeps the plan, and the newest kMostCachedPlans in all. Failures leave it out.
inline constexpr size_t kMostCachedPlans = 64;
void store_cached_plan(const std::string& key, const Plan& plan);

}  // namespace elixir::planner
