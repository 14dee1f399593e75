#pragma once

// A StepModel worked out before time runs: which chunk goes into which block, when gradients come,
// and in which order chunks are updated. It also has the bytes that each of these moves.

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "planner/cache/fetches.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

// The part of a chunk's gradient that an operator adds.
struct GradientPart {
  uint32_t chunk = 0;
  uint64_t numel = 0;
  bool completes = false;        // it completes the chunk's gradient
  bool ends_micro_step = false;  // each of the chunk's parameters has one gradient more
};

struct StepProgram {
  UseList uses;  // chunks that are gathered into blocks; the first one stands for a run
  // Fetches in the order of need, into ordinary blocks and into long ones.
  std::array<std::vector<CacheFetch>, 2> fetches;
  std::vector<uint32_t> held;  // frozen chunks that are in blocks when a step begins
  std::vector<std::vector<GradientPart>> gradients;  // by operator
  std::vector<uint32_t> update_order;                // trained chunks in the order of first use
  std::vector<uint8_t> has_gradient;                 // by chunk: some operator completes it
  bool alone = true;                                 // one rank
  bool collective = false;   // several ranks, and they exchange by collectives
  uint64_t chunk_bytes = 0;  // a chunk's parameters or gradients
  uint64_t gpu_numel = 0;    // elements of trained chunks placed on the GPU
};

// Returns kInvalidArgument for an index beyond its vector, or times or rates that are negative or
// not finite. Other faults are no ranks, and an operator that needs more chunks than there are
// blocks.
Result<StepProgram> make_step_program(const StepModel& model);

}  // namespace elixir::planner
