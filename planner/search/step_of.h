#pragma once

#include "planner/search/candidate.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

// The step that a candidate makes. Operators in a row that read the same chunks become one.
// `runtime`: how it overlaps.
StepModel step_of(const Setting& setting, const Candidate& candidate, const StepRuntime& runtime);

// `once` with `micro_steps` passes of forward and backward.
StepModel repeated(const StepModel& once, uint32_t micro_steps);

// Seconds that CPU workers need for the candidate's updates in place, without a pause. The step is
// no shorter, and this is cheap to compute.
double host_update_s(const Setting& setting, const Candidate& candidate);

}  // namespace elixir::planner
