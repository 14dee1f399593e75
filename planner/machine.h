#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace elixir::planner {

// What a node can do. GB are 1e9 bytes, Gparam 1e9 parameters. Bandwidths and update rates are
// those of all its `gpus` together (Elixir, arXiv 2212.05339 v2, tables 4 and 5); memory,
// gpu_tflops and gpu_half_tokens are those of one GPU.
struct Machine {
  uint32_t gpus = 1;
  uint64_t gpu_memory_bytes = 0;  // that plans may fill: less kDeviceOverheadBytes
  uint64_t host_memory_bytes = 0;
  double g2c_gb_s = 0;    // device to host
  double c2g_gb_s = 0;    // host to device
  double joint_gb_s = 0;  // both directions at once; 0: they do not slow one another
  double g2g_gb_s = 0;    // gathered or reduced chunks by collectives; not used with one GPU
  double gpu_update_gparam_s = 0;
  double cpu_update_gparam_s = 0;
  double dram_gb_s = 0;   // host memory, read and written in place
  double gpu_tflops = 0;  // matrix rate that large operators reach
  // Tokens at which half of gpu_tflops is reached: rate = gpu_tflops * t / (t + gpu_half_tokens).
  double gpu_half_tokens = 0;
  // The share of copies hidden behind compute by a runtime that prefetches one chunk: policy paper.
  std::optional<double> copies_hidden = {};

  std::string name = "";    // of the host
  std::string probed = "";  // date, ISO 8601; "": not by a probe
};

// What a training's process takes of a GPU beside the tensors that a profile counts. Of torch's
// allocator, and so below a limit given to it: for the thread of the forward pass and for
// autograd's 32 MiB of cuBLAS's and 1 MiB of cuBLASLt's workspace each, and 8 MiB, the most that
// sums over rows (the gradients of biases) were seen to take for partial sums on a device of 132
// processors. In all, CUDA's context with the code of the kernels used, and cuDNN's handle with its
// plans, too: an allowance that no GPU has measured yet.
inline constexpr uint64_t kDeviceWorkspaceBytes = uint64_t{2 * (32 + 1) + 8} << 20;
inline constexpr uint64_t kDeviceOverheadBytes = uint64_t{768} << 20;

// What is left for a plan: of a GPU, and below a limit given to torch's allocator.
uint64_t plannable_of_gpu(uint64_t bytes);
uint64_t plannable_of_limit(uint64_t bytes);

inline constexpr uint32_t kMostGpus = 4096;  // as ranks of a job, shm::kMaxRanks
inline constexpr double kLeastRate = 1e-9, kMostRate = 1e12;

// kBadInput, with the field: negative, not finite, a rate of 0 or out of these bounds, no memory,
// zero GPUs or more than there can be.
Status check_machine(const Machine& machine);

// Floating-point operations a second of one GPU with so many tokens a step.
double gpu_flops(const Machine& machine, uint64_t tokens);

}  // namespace elixir::planner
