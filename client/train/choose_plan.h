#pragma once

#include <optional>

#include "base/status.h"
#include "client/ranks/launch_environment.h"
#include "client/runtime_options.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir {

// What the planner chooses for a training by `runtime`, on the machine as `elixirctl probe` left it
// in its cache (planner/machine_cache.h); what is not in a cache is measured now where that
// disturbs nobody, by a single rank on the CPU. The same on all ranks of a node.
//
//   planner::ModelProfile profile = profile_step(*model, loss, {...});      // client/profile
//   if (auto planned = choose_plan(profile, runtime, environment); planned.ok() && *planned) {
//     runtime.plan = training_plan(profile, (*planned)->plan);
//   }
//
// Nothing, with a line in the log where it is not by choice: something of the plan is asked for in
// `runtime`; the device is the CPU and device_memory_bytes is 0, so that nothing is scarce; there
// are several nodes; the machine has not been measured. kResourceExhausted: nothing fits.
Result<std::optional<planner::PlannedStep>> choose_plan(const planner::ModelProfile& profile,
                                                        const RuntimeOptions& runtime,
                                                        const LaunchEnvironment& environment);

// False where choose_plan() would choose nothing by choice, so that no profile is needed.
bool plan_is_wanted(const RuntimeOptions& runtime);

}  // namespace elixir
