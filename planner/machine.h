#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/shape.h"

namespace elixir::planner {

// Rates of links and updates with `gpus` GPUs at once: all of them together, except for g2g_gb_s.
struct GpuRates {
  uint32_t gpus = 1;
  double d2h_gb_s = 0;    // device to host
  double h2d_gb_s = 0;    // host to device
  double joint_gb_s = 0;  // both directions at once; 0: they do not slow each other down
  // Chunk bytes per second that all GPUs gather, or reduce among them. A ring of N GPUs reaches N /
  // (N - 1) times what its slowest link carries. Not used with one GPU.
  double g2g_gb_s = 0;
  double gpu_update_gparam_s = 0;
  double cpu_update_gparam_s = 0;
};

// Fused attention at one head width, the whole square of scores counted.
struct AttentionRate {
  uint32_t head = 0;
  double forward_tflops = 0, backward_tflops = 0;
};

// The rates and the memory of a node, or of several equal nodes. GB are 1e9 bytes, Gparam 1e9
// parameters. Bandwidths and update rates are those of all `gpus` of all `nodes` together (Elixir,
// arXiv 2212.05339 v2, tables 4 and 5), except g2g_gb_s. Memory and matrix rates are those of one
// GPU. Host memory is that of one node.
struct Machine : GpuRates {
  uint32_t nodes = 1;             // with gpus / nodes GPUs each
  uint64_t gpu_memory_bytes = 0;  // per GPU
  uint64_t overhead_bytes = 0;    // the part that the process takes beside tensors
  uint64_t host_memory_bytes = 0;
  uint32_t numa_nodes = 1;    // of a node's host: its rates below are those of all together
  double internode_gb_s = 0;  // like g2g_gb_s, among nodes; 0: not known
  double dram_gb_s = 0;       // host memory, read and written in place
  // elixird's update while copies run both ways at their joint rate, which tells what host memory
  // does for both together; 0: not known, and then that is dram_gb_s.
  double cpu_update_beside_copies_gparam_s = 0;
  double gpu_tflops = 0;       // matrix rate of large operators, in 16 bits
  double gpu_fp32_tflops = 0;  // in FP32; 0: not known
  double gpu_peak_tflops = 0;  // in 16 bits, by the data sheet; 0: not known
  double gpu_memory_gb_s = 0;  // device memory that operators read and write; 0: device_gb_s()
  double gpu_launch_us = 0;    // a kernel's; 0: not known
  std::vector<AttentionRate> gpu_attention_tflops = {};  // by head width; empty: not known
  double paper_tflops = 0;  // Policy paper: its runtime's matrix rate in 16 bits; 0: gpu_tflops
  // Policy paper: what its runtime does for each parameter in each step beside products (casts,
  // unscaling, norms), in 1e-12 s of one GPU.
  double paper_parameter_ps = 0;
  // Policy paper: the share of copies that a runtime with one chunk of prefetch hides behind
  // compute.
  std::optional<double> copies_hidden = {};

  // Rates of one node by its number of GPUs. with_gpus() uses those that are known. A rate of 0
  // means the machine's own rate, in proportion.
  std::vector<GpuRates> by_gpus = {};
  // elixird's update rate with 1, 2, ... trainers; empty: not known.
  std::vector<double> cpu_update_gparam_s_by_trainers = {};
  // The rates were scaled in proportion from those of this many GPUs; 0: they were not.
  uint32_t scaled_from_gpus = 0;
  bool assumed_g2g = false;  // g2g_gb_s was not known; it is g2g_through_host()

  std::string name = "";    // the host's
  std::string probed = "";  // the date of the probe, ISO 8601; "": not probed
};

// GPU memory that a trainer takes beside the tensors that a profile counts.
//
// kDeviceWorkspaceBytes comes from torch's allocator, and so counts against a limit given to it.
// The thread of the forward pass and autograd's thread each take 32 MiB for cuBLAS's workspace and
// 1 MiB for cuBLASLt's. Sums over rows (the gradients of biases) take 8 MiB for partial sums, the
// most seen on a device of 132 processors.
//
// kDeviceOverheadBytes is the total. It also covers CUDA's context with the code of the kernels
// used, and cuDNN's handle with its plans. It is an allowance that no GPU has measured yet. A plan
// for a whole GPU never leaves less: search/benefit.h.
inline constexpr uint64_t kDeviceWorkspaceBytes = uint64_t{2 * (32 + 1) + 8} << 20;
inline constexpr uint64_t kDeviceOverheadBytes = uint64_t{768} << 20;

// The bytes that a plan may use below a limit given to torch's allocator.
uint64_t plannable_of_limit(uint64_t bytes);

// The share of a node's host memory that a plan may use.
inline constexpr double kHostShare = 0.95;
uint64_t usable_host_bytes(uint64_t host_memory_bytes);

inline constexpr uint32_t kMostGpus = shm::kMaxRanks;  // per job
inline constexpr uint32_t kMostGpusPerNode = 1024, kMostNumaNodes = 1024;
inline constexpr double kLeastRate = 1e-9, kMostRate = 1e12;

// Returns kBadInput with the field. Faults are values that are negative, not finite or out of these
// bounds, rates of 0, and memory of 0. So are zero GPUs, too many GPUs, and GPUs that are not whole
// nodes.
Status check_machine(const Machine& machine);

// The rate of collectives that go through host memory, down and up: half of one GPU's link, in a
// ring.
double g2g_through_host(const Machine& machine);

// `gpus` GPUs in nodes of `gpus_per_node`, each like `node`, which is one node. Rates come from
// by_gpus, or are scaled in proportion. Matrix rates and memory stay, and host_memory_bytes is per
// node. With several nodes each rate is multiplied by their number, and collectives run at the
// lesser of g2g_gb_s and internode_gb_s. A missing g2g_gb_s becomes g2g_through_host(). Returns
// kInvalidArgument if `gpus` are not whole nodes or exceed kMostGpus, if a node has more than
// kMostGpusPerNode, or for several nodes without internode_gb_s.
Result<Machine> with_gpus(const Machine& node, uint32_t gpus, uint32_t gpus_per_node);

// One node for several unlike ones that train together and wait for the slowest: each rate and each
// size is the least of `a` and `b`. Both are of one node with as many GPUs (else kInvalidArgument).
Result<Machine> slowest_of(const Machine& a, const Machine& b);

// The matrix rate of large operators on elements of `dtype_bytes`; 0: not known.
double matrix_tflops(const Machine& machine, uint32_t dtype_bytes);

// The rate that MFU is a share of: by the data sheet in 16 bits, else matrix_tflops().
double peak_tflops(const Machine& machine, uint32_t dtype_bytes);

// Bytes that an update in BF16 moves for a parameter: gradient, master and moments are read, the
// latter two and the parameter are written.
inline constexpr double kUpdateBytes = 26;

// The memory rate of one GPU, in GB/s: gpu_memory_gb_s or, where it is not known, what the GPU's
// Adam moves.
double device_gb_s(const Machine& machine);

}  // namespace elixir::planner
