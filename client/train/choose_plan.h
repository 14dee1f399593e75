#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "client/plan/options.h"
#include "client/ranks/launch_environment.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir {

// Whether the plan of an earlier start may be taken (plan_cache.h). It has no step to simulate:
// PlannedStep::step and packing are empty.
enum class CachedPlans : uint8_t { kTaken, kIgnored };

// The planner's choice for a training with `options`, with the rates that were measured for this
// hardware, or that are measured now (planned_machine.h). All ranks call it and get the same
// choice. elixir::plan() makes a profile and calls this.
//
// Returns nothing in three cases. The log has a line if this was not the user's choice.
//   `options` have a strategy, a plan or a layout. (Four fields of the layout do not count, because
//   a plan follows them: exchange, long_blocks, spare_slots and swing_stride.)
//   The device is the CPU and device_memory_bytes is 0, so that nothing is scarce.
//   The rates are not known: ELIXIR_PROBE=0 forbids to measure, or measuring failed.
// Returns kResourceExhausted if nothing fits.
Result<std::optional<planner::PlannedStep>> choose_plan(const planner::ModelProfile& profile,
                                                        const Options& options,
                                                        const LaunchEnvironment& environment,
                                                        CachedPlans cached = CachedPlans::kTaken);

// False if choose_plan() would return nothing by the user's choice. Then no profile is needed.
bool plan_is_wanted(const Options& options);

}  // namespace elixir
