#pragma once

#include "base/region_plan.h"
#include "base/status.h"
#include "client/plan/options.h"

namespace elixir {

// The plan for a run's checkpointed regions, by its plan and by options.activations. Without a plan
// the number of regions is not known. Returns kInvalidArgument if the two contradict each other.
Result<RegionPlan> asked_regions(const Options& options);

}  // namespace elixir
