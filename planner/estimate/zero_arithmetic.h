#pragma once

// ZeRO's own arithmetic (Rajbhandari et al., arXiv 1910.02054), beside what this project counts.

#include <array>
#include <cstdint>
#include <string>

#include "planner/estimate/estimate.h"

namespace elixir::planner {

// A GPT's. 0: not known.
struct ZeroShape {
  uint64_t width = 0, layers = 0;
};

// The input of ZeRO's formulas.
struct ZeroRequest {
  uint32_t gpus = 1;              // N_d of the paper, and its degree of model parallelism for P_a
  uint64_t gpu_memory_bytes = 0;  // 0: not known
  uint64_t batch = 0, seq = 0;    // 0: not known
  ZeroShape shape = {};
};

struct ZeroArithmetic {
  // The largest model in parameters whose states alone fill a GPU, by kStateStrategies' first four
  // (table 2, theoretical): 16 bytes per parameter, with P_os 4 + 12/N, with P_os+g 2 + 14/N, with
  // P_os+g+p 16/N. 0: the GPU's memory is not known.
  std::array<uint64_t, 4> largest_params = {};
  // FP16 activations of a GPT: 12 x width x batch x seq x layers elements (section 3.2). 0: not
  // known.
  uint64_t activation_bytes = 0;
  // Checkpoints of one activation per layer: width x batch x seq x layers elements in FP16, and the
  // share of a GPU with P_a (section 6.1). With P_a+cpu a GPU keeps none of them.
  uint64_t checkpoint_bytes = 0, p_a_bytes = 0;
};

ZeroArithmetic zero_arithmetic(const ZeroRequest& request);

// {"largest_params": {"ddp", "zero1", "zero2", "zero3"}, "activation_bytes", "checkpoint_bytes",
// "p_a_bytes", "p_a_cpu_bytes"}; what is not known is null.
std::string to_json(const ZeroArithmetic& zero);
// Lines for people. "": nothing is known. `own_bytes`: activations as the profile counts them; 0:
// not known.
std::string to_text(const ZeroArithmetic& zero, uint64_t own_bytes);

}  // namespace elixir::planner
