#pragma once

#include <string>
#include <string_view>

#include "base/region_plan.h"
#include "base/status.h"
#include "planner/choices.h"

namespace elixir {

// The words for kRecompute and kKeep alone, as a flag and its negation.
inline constexpr char kCheckpointFlags[] = "--checkpoint-activations,!--no-checkpoint-activations";
inline constexpr char kCheckpointFlagsHelp[] =
    "Short for --activations recompute, and --no-checkpoint-activations for keep";

inline constexpr char kActivationNames[] = "auto, recompute, keep, products:K, host or host:BYTES";

// "auto", "recompute", "keep", "products:K" with K from 1 to kMostRegions, "host", or "host:20GiB".
// Returns kInvalidArgument, with these names, for another text.
Result<Activations> parse_activations(std::string_view text);
std::string to_text(const Activations& activations);

// The plan of a pass with so many regions, if the activations alone decide: kHost sends everything.
// REQUIRES: not kAuto.
RegionPlan region_plan_for(const Activations& activations, uint32_t regions);

// Whether a plan is one of those that the activations ask for.
bool is_plan_for(const Activations& activations, const RegionPlan& plan);

}  // namespace elixir
