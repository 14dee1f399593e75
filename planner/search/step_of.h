#pragma once

#include "planner/search/candidate.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

// Floating-point operations of a step of one GPU: the profile's, or 6 (with activation
// checkpointing 8) for each parameter and token.
double step_flops(const ModelProfile& profile);
// In the paper's measure, whatever the profile counts: 8 or 6 for each parameter and token.
double nominal_flops(const ModelProfile& profile);

// The step that a candidate makes. Operators in a row that read the same chunks are one. `runtime`:
// how it overlaps. REQUIRES: profile.tokens > 0.
StepModel step_of(const Setting& setting, const Candidate& candidate, const StepRuntime& runtime);

// The same with so many passes of forward and backward.
StepModel repeated(const StepModel& once, uint32_t micro_steps);

// What CPU workers take for the candidate's updates in place, without a pause: its step is no
// shorter, and this is cheap to tell.
double host_update_s(const Setting& setting, const Candidate& candidate);

}  // namespace elixir::planner
