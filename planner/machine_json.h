#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/machine.h"

namespace elixir::planner {

// Which meaning the fields have. 2: as Machine's. 1, or none: in a file by a probe g2g_gb_s was of
// all links together, which a ring over N GPUs uses N - 1 times for a chunk, so that it is divided
// by N - 1; one written by hand was always simulated as chunk bytes a second, and still is.
// gpu_memory_bytes was what a plan may fill, so that overhead_bytes is then 0.
inline constexpr uint32_t kMachineFileVersion = 2;

// Machine's members under their own names, of one node, and "version"; gpu_half_tokens,
// gpu_fp32_tflops, internode_gb_s, copies_hidden, by_gpus, name and probed may be missing,
// overhead_bytes is then kDeviceOverheadBytes, g2g_gb_s with one GPU. REQUIRES: one node.
std::string to_json(const Machine& machine);

inline constexpr uint64_t kLeastMemoryBytes = uint64_t{1} << 20;

// What a command line says in the file's place.
struct MachineOverrides {
  std::optional<uint32_t> gpus = {};           // of all nodes
  std::optional<uint32_t> gpus_per_node = {};  // at most; without it all are in one
  std::optional<double> g2g_gb_s = {};
  std::optional<double> internode_gb_s = {};
  std::optional<uint64_t> gpu_memory_bytes = {};
  std::optional<uint64_t> host_memory_bytes = {};
};

// Memory below kLeastMemoryBytes is in another unit. Rates are with_gpus()'s. kBadInput: not JSON,
// a field that is missing, of another type, negative or misspelt, another version, or
// check_machine()'s; and with_gpus()'s.
Result<Machine> machine_from_json(std::string_view text, const MachineOverrides& overrides = {});

}  // namespace elixir::planner
