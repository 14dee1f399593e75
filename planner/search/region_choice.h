#pragma once

#include <cstdint>
#include <functional>

#include "base/region_plan.h"
#include "base/status.h"

namespace elixir::planner {

// A plan whose regions keep something is taken if its step is shorter by at least this share.
inline constexpr double kRegionGain = 0.005;

// Seconds of a step in which regions keep what the plan says; infinite if that does not fit.
using StepOfRegions = std::function<Result<double>(const RegionPlan& plan)>;

// What `regions` regions should keep. It begins with a quarter, half and all of them that keep
// their products, or everything. From the best of these it goes to better neighbours, at distances
// from an eighth of the regions down to one.
// Note: docs/design/elixir.md, "simulation before formulas".
Result<RegionPlan> choose_regions(uint32_t regions, const StepOfRegions& step_s);

}  // namespace elixir::planner
