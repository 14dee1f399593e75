#pragma once

#include <string>

#include "planner/plan/plan.h"
#include "planner/profile.h"

namespace elixir::planner {

// A GPU's memory over a step as an SVG: what is there all the time (states, rCache, buffers) and,
// above it, activations by operator (ModelProfile::activation_curve; without one, their peak),
// under a line for the GPU's capacity.
std::string memory_picture(const Plan& plan, const ModelProfile& profile,
                           uint64_t gpu_memory_bytes);

}  // namespace elixir::planner
