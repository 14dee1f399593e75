#pragma once

#include <string>

#include "planner/plan/plan.h"
#include "planner/profile.h"

namespace elixir::planner {

// A GPU's memory over a step as an SVG. The states, the rCache and the buffers are at the bottom,
// because they are there all the time. Activations by operator are above them
// (ModelProfile::activation_curve; without one, their peak). A line shows the GPU's capacity.
std::string memory_picture(const Plan& plan, const ModelProfile& profile,
                           uint64_t gpu_memory_bytes);

}  // namespace elixir::planner
