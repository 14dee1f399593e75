#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/compute_parts.h"
#include "planner/machine.h"
#include "planner/profile.h"

namespace elixir::planner {

enum class ComputeMeasure : uint8_t {
  // As the profile describes operators (compute_parts.h). A profile that only counts operations, or
  // not even them, has them at the matrix rate.
  kOperators,
  // The paper's: 6 (with activation checkpointing 8) operations per parameter and token, and its
  // runtime's own time per parameter (Machine::paper_parameter_ps).
  kPaper,
};

// The compute of a pass forward and backward on one GPU.
struct StepCompute {
  std::vector<double> seconds;        // by operator of profile.steps
  std::optional<ComputeParts> parts;  // of all operators; empty: the profile does not describe them
  double flops = 0;                   // floating-point operations
  double forward_flops = 0;           // those of forward, without a repetition in backward
};

// REQUIRES: profile.tokens > 0, and checked input.
StepCompute step_compute(const ModelProfile& profile, const Machine& machine,
                         ComputeMeasure measure);

}  // namespace elixir::planner
