#pragma once

// What a StepModel says, worked out before time runs: which chunk goes into which block, when
// gradients come, in which order chunks are updated, how many bytes each of these moves.

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "planner/cache/fetches.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

// What an operator adds to a chunk's gradient.
struct GradientPart {
  uint32_t chunk = 0;
  uint64_t numel = 0;
  bool completes = false;        // the chunk's gradient
  bool ends_micro_step = false;  // every parameter of the chunk has had one more
};

struct StepProgram {
  UseList uses;  // of chunks that are gathered into blocks, of runs the first
  // In the order of need, into ordinary blocks and into long ones.
  std::array<std::vector<CacheFetch>, 2> fetches;
  std::vector<uint32_t> held;  // frozen chunks that are in blocks when a step begins
  std::vector<std::vector<GradientPart>> gradients;  // by operator
  std::vector<uint32_t> update_order;                // trained chunks in the order of first use
  std::vector<uint8_t> has_gradient;                 // by chunk: some operator completes it
  bool alone = true;                                 // one rank
  bool collective = false;   // several ranks, and they exchange by collectives
  uint64_t chunk_bytes = 0;  // of parameters or gradients
  uint64_t gpu_numel = 0;    // of trained chunks placed on the GPU
};

// kInvalidArgument: an index beyond its vector, times or rates that are negative or not finite, no
// ranks, an operator that needs more chunks than there are blocks.
Result<StepProgram> make_step_program(const StepModel& model);

}  // namespace elixir::planner
