#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/shape.h"

namespace elixir::planner {

// What links and updates reach with so many GPUs at once, of all of them together but for g2g_gb_s.
struct GpuRates {
  uint32_t gpus = 1;
  double d2h_gb_s = 0;    // device to host
  double h2d_gb_s = 0;    // host to device
  double joint_gb_s = 0;  // both directions at once; 0: they do not slow one another
  // Chunk bytes a second, gathered by all GPUs or reduced among them: a ring whose slowest link
  // carries x passes x N / (N - 1), whatever N. Not used with one GPU.
  double g2g_gb_s = 0;
  double gpu_update_gparam_s = 0;
  double cpu_update_gparam_s = 0;
};

// What a node, or several alike, can do. GB are 1e9 bytes, Gparam 1e9 parameters. Bandwidths and
// update rates are those of all `gpus` of all `nodes` together (Elixir, arXiv 2212.05339 v2, tables
// 4 and 5), but for g2g_gb_s; memory and matrix rates are those of one GPU, host memory of one
// node.
struct Machine : GpuRates {
  uint32_t nodes = 1;             // with gpus / nodes GPUs each
  uint64_t gpu_memory_bytes = 0;  // of one GPU
  uint64_t overhead_bytes = 0;    // of it, what the process takes beside tensors
  uint64_t host_memory_bytes = 0;
  double internode_gb_s = 0;   // as g2g_gb_s, among nodes; 0: not known
  double dram_gb_s = 0;        // host memory, read and written in place
  double gpu_tflops = 0;       // matrix rate that large operators reach, in 16 bits
  double gpu_fp32_tflops = 0;  // in FP32; 0: not known
  // Tokens at which half of gpu_tflops is reached: rate = gpu_tflops * t / (t + gpu_half_tokens).
  double gpu_half_tokens = 0;
  // The share of copies hidden behind compute by a runtime that prefetches one chunk: policy paper.
  std::optional<double> copies_hidden = {};

  // Of a node, by number of its GPUs: where they are known, with_gpus() takes them. 0: as the
  // machine's own, in proportion.
  std::vector<GpuRates> by_gpus = {};
  // What elixird updates with 1, 2, ... trainers; empty: not known.
  std::vector<double> cpu_update_gparam_s_by_trainers = {};
  // Rates were taken in proportion to those of so many GPUs; 0: they were not.
  uint32_t scaled_from_gpus = 0;
  bool assumed_g2g = false;  // g2g_gb_s was not known: it is g2g_through_host()

  std::string name = "";    // of the host
  std::string probed = "";  // date, ISO 8601; "": not by a probe
};

// What a training's process takes of a GPU beside the tensors that a profile counts. Of torch's
// allocator, and so below a limit given to it: for the thread of the forward pass and for
// autograd's 32 MiB of cuBLAS's and 1 MiB of cuBLASLt's workspace each, and 8 MiB, the most that
// sums over rows (the gradients of biases) were seen to take for partial sums on a device of 132
// processors. In all, CUDA's context with the code of the kernels used, and cuDNN's handle with its
// plans, too: an allowance that no GPU has measured yet. What a plan leaves of a whole GPU is never
// less: search/benefit.h.
inline constexpr uint64_t kDeviceWorkspaceBytes = uint64_t{2 * (32 + 1) + 8} << 20;
inline constexpr uint64_t kDeviceOverheadBytes = uint64_t{768} << 20;

// What is left for a plan below a limit given to torch's allocator.
uint64_t plannable_of_limit(uint64_t bytes);

// Of a node's host memory, what a plan may take.
inline constexpr double kHostShare = 0.95;
uint64_t usable_host_bytes(uint64_t host_memory_bytes);

inline constexpr uint32_t kMostGpus = shm::kMaxRanks;  // of a job
inline constexpr uint32_t kMostGpusPerNode = 1024;
inline constexpr double kLeastRate = 1e-9, kMostRate = 1e12;

// kBadInput, with the field: negative, not finite, a rate of 0 or out of these bounds, no
// memory, zero GPUs or more than there can be, GPUs that are not whole nodes.
Status check_machine(const Machine& machine);

// Collectives that go through host memory, down and up: half of one GPU's link, in a ring.
double g2g_through_host(const Machine& machine);

// `node`, of one node, as nodes of `gpus_per_node` GPUs: rates as by_gpus has them, else in
// proportion; matrix rates and memory stay, host_memory_bytes is that of each node. Several nodes
// have each rate as often, and collectives at the lesser of g2g_gb_s and internode_gb_s. Where
// g2g_gb_s is missing it is g2g_through_host(). kInvalidArgument: `gpus` are not whole nodes, more
// than kMostGpus, or several nodes without internode_gb_s.
Result<Machine> with_gpus(const Machine& node, uint32_t gpus, uint32_t gpus_per_node);

// Of large operators on elements of `dtype_bytes`; 0: not known.
double matrix_tflops(const Machine& machine, uint32_t dtype_bytes);

// Floating-point operations a second of one GPU with so many tokens a step, elements of
// `dtype_bytes`.
double gpu_flops(const Machine& machine, uint64_t tokens, uint32_t dtype_bytes);

}  // namespace elixir::planner
