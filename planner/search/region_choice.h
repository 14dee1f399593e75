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

// Chooses what the regions of `base` keep and send. It begins with a quarter, half and all of them
// that keep their products, that send them, or that keep everything. From the best of these it goes
// to better neighbours, at distances from an eighth of the regions down to one. The number of
// regions that send their inputs stays that of `base`. If it is 0 and all may be chosen, all of
// them do if that is shorter by kRegionGain. Note: docs/design/elixir.md, "simulation before
// formulas".
enum class RegionsMay : uint8_t { kAnything, kKeep, kSendProducts };
Result<RegionPlan> choose_regions(const RegionPlan& base, RegionsMay may,
                                  const StepOfRegions& step_s);

}  // namespace elixir::planner
