#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/known_gpus.h"
#include "planner/machine.h"

namespace elixir::planner {

// The version of the fields' meaning. 3: as in Machine. 2: gpu_half_tokens, the tokens at which
// half of gpu_tflops was thought to be reached, is what paper_parameter_ps says otherwise: the time
// of 8 operations per parameter on so many tokens. 1, or no version, also:
// - In a file from a probe, g2g_gb_s is the rate of all links together. A ring over N GPUs uses the
//   links N - 1 times for a chunk, so the rate is divided by N - 1. A file written by hand has
//   always been simulated with chunk bytes per second, and still is.
// - gpu_memory_bytes is the memory that a plan may fill, so overhead_bytes is 0.
inline constexpr uint32_t kMachineFileVersion = 3;

// Machine's members under their own names, for one node, and "version". May be missing:
// numa_nodes, cpu_update_beside_copies_gparam_s, gpu_fp32_tflops, gpu_peak_tflops, gpu_memory_gb_s,
// gpu_launch_us, gpu_attention_tflops, paper_tflops, paper_parameter_ps, copies_hidden,
// internode_gb_s, by_gpus, name and probed. So may overhead_bytes, which is then
// kDeviceOverheadBytes, and g2g_gb_s with one GPU. REQUIRES: one node.
std::string to_json(const Machine& machine);

inline constexpr uint64_t kLeastMemoryBytes = uint64_t{1} << 20;

// Values from the command line that replace the file's.
struct MachineOverrides {
  std::optional<uint32_t> gpus = {};           // over all nodes
  std::optional<uint32_t> gpus_per_node = {};  // at most; empty: all are in one node
  std::optional<double> g2g_gb_s = {};
  std::optional<double> internode_gb_s = {};
  std::optional<KnownGpu> gpu = {};              // all rates and memory of a GPU, before the others
  std::optional<double> link_gb_s = {};          // a GPU, each way
  std::optional<uint32_t> host_numa_nodes = {};  // more or fewer: rates are scaled
  std::optional<double> cpu_gparam_s = {};       // elixird's update with any number of trainers
  std::optional<uint64_t> gpu_memory_bytes = {};
  std::optional<uint64_t> host_memory_bytes = {};
};

// Reads a machine file and applies the overrides. Rates are those of with_gpus(). Returns kBadInput
// if the text is not JSON or has another version, or if a field is missing, misspelt, negative or
// of another type. Memory below kLeastMemoryBytes is an error, because it must be in another unit.
// Also returns the errors of check_machine() and with_gpus().
Result<Machine> machine_from_json(std::string_view text, const MachineOverrides& overrides = {});

}  // namespace elixir::planner
