#pragma once

#include <string>

#include "base/status.h"
#include "client/plan/options.h"
#include "client/ranks/launch_environment.h"
#include "planner/machine.h"

namespace elixir {

struct PlannedMachine {
  planner::Machine machine;
  // Plan::measured_rates
  std::string measured_rates = "";
};

// The machine that a training is planned for: the rates that were measured for this hardware, or
// that are measured now (client/probe/first_probe.h), with the limits of `options`. All ranks call
// it, and all get the same, on several nodes the slowest rates of any.
//
// Returns kUnavailable, with cause and remedy, if this machine's rates are not known and cannot be
// measured now; other errors are those of `options`.
Result<PlannedMachine> planned_machine(const Options& options,
                                       const LaunchEnvironment& environment);

// Whether the device of `options` is the CPU.
bool on_cpu(const Options& options);

}  // namespace elixir
