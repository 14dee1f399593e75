#pragma once

#include "base/status.h"
#include "client/ranks/launch_environment.h"
#include "planner/machine.h"

namespace elixir {

// One machine for a job on several nodes: the slowest rates of any (planner::slowest_of), and as
// many nodes. All ranks call it at the same time, each with its own node's machine or why there is
// none; all get the same result. With one node it returns `own`.
//
// If no machine file has internode_gb_s, the rate is that of the slowest node's fastest network
// link (network_gb_s), or kAssumedInternodeGbS.
//
// Returns the error of the first rank that has one, of the rendezvous, or kInvalidArgument for
// nodes of unlike numbers of ranks.
inline constexpr double kAssumedInternodeGbS = 1.25;  // Ethernet of 10 Gbit/s
Result<planner::Machine> agree_machine(const Result<planner::Machine>& own,
                                       const LaunchEnvironment& environment);

}  // namespace elixir
