#pragma once

#include <optional>

#include "base/status.h"
#include "client/plan/options.h"
#include "client/ranks/launch_environment.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir {

// What the planner chooses for a training by `options`, on the machine as `elixirctl probe` left it
// in its cache (planner/machine_cache.h); what is not in a cache is measured now where that
// disturbs nobody, by a single rank on the CPU. The same on all ranks of a node. elixir::plan() is
// this after a profile.
//
// Nothing, with a line in the log where it is not by choice: something of the layout is asked for
// in `options`; the device is the CPU and device_memory_bytes is 0, so that nothing is scarce;
// there are several nodes; the machine has not been measured. kResourceExhausted: nothing fits.
Result<std::optional<planner::PlannedStep>> choose_plan(const planner::ModelProfile& profile,
                                                        const Options& options,
                                                        const LaunchEnvironment& environment);

// False where choose_plan() would choose nothing by choice, so that no profile is needed.
bool plan_is_wanted(const Options& options);

}  // namespace elixir
