#pragma once

#include "base/region_plan.h"
#include "planner/profile.h"

namespace elixir::planner {

inline constexpr double kActivationFactor = 1.25;  // F_frag: fragmentation of torch's allocator
// What regions keep has equal sizes in each step, so the allocator finds its places again.
// Assumed: not measured on a GPU yet.
inline constexpr double kKeptFactor = 1.05;

// The profile of a step in which checkpointed regions keep and send what the plan says.
// Activations, their curve, allocated_bytes, parcels and the operators' work are that step's.
// `steps` stays: regions hold all of their chunks anyway.
//
// Memory is that of client/train/activation_store: what a region has sent is on the device until
// the next sending region's forward ends, and again from that region's backward on.
// REQUIRES: checked input; regions.size() == plan.regions, or the plan keeps and sends nothing.
ModelProfile with_regions(ModelProfile profile, const RegionPlan& plan);

}  // namespace elixir::planner
