#pragma once

#include <optional>

#include "base/status.h"
#include "client/plan/options.h"
#include "client/ranks/launch_environment.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir {

// The planner's choice for a training with `options`. It uses the cached measurements of `elixirctl
// probe` (planner/machine_cache.h). If they are missing, a single rank on the CPU measures now,
// because that disturbs nobody. All ranks of a node get the same choice. elixir::plan() makes a
// profile and calls this.
//
// Returns nothing in four cases. The log has a line if this was not the user's choice.
//   `options` have a strategy, a plan or a layout. (Four fields of the layout do not count, because
//   a plan follows them: exchange, long_blocks, spare_slots and swing_stride.)
//   The device is the CPU and device_memory_bytes is 0, so that nothing is scarce.
//   There are several nodes.
//   The machine has not been measured.
// Returns kResourceExhausted if nothing fits.
Result<std::optional<planner::PlannedStep>> choose_plan(const planner::ModelProfile& profile,
                                                        const Options& options,
                                                        const LaunchEnvironment& environment);

// False if choose_plan() would return nothing by the user's choice. Then no profile is needed.
bool plan_is_wanted(const Options& options);

}  // namespace elixir
