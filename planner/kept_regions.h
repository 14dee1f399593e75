#pragma once

#include "base/region_plan.h"
#include "planner/profile.h"

namespace elixir::planner {

inline constexpr double kActivationFactor = 1.25;  // F_frag: fragmentation of torch's allocator
// What regions keep has equal sizes in each step, so the allocator finds its places again.
// Assumed: not measured on a GPU yet.
inline constexpr double kKeptFactor = 1.05;

// The profile of a step in which checkpointed regions keep what the plan says. Activations, their
// curve, allocated_bytes and the operators' work are that step's. `steps` stays: regions hold all
// of their chunks anyway.
// REQUIRES: checked input; regions.size() == plan.regions, or the plan keeps nothing.
ModelProfile with_regions(ModelProfile profile, const RegionPlan& plan);

}  // namespace elixir::planner
