#pragma once

#include "planner/search/candidate.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

// Floating-point operations of a step on one GPU: the profile's, or 6 (with activation
// checkpointing 8) per parameter and token.
double step_flops(const ModelProfile& profile);
// By the paper's measure, even if the profile counts operations: 8 or 6 per parameter and token.
double nominal_flops(const ModelProfile& profile);

// Whether the step's compute follows from operators (planner/compute_parts.h), or from products
// alone.
bool tells_compute(const Setting& setting);

// The step that a candidate makes. Operators in a row that read the same chunks become one.
// `runtime`: how it overlaps. REQUIRES: profile.tokens > 0.
StepModel step_of(const Setting& setting, const Candidate& candidate, const StepRuntime& runtime);

// `once` with `micro_steps` passes of forward and backward.
StepModel repeated(const StepModel& once, uint32_t micro_steps);

// Seconds that CPU workers need for the candidate's updates in place, without a pause. The step is
// no shorter, and this is cheap to compute.
double host_update_s(const Setting& setting, const Candidate& candidate);

}  // namespace elixir::planner
