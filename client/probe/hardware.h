#pragma once

#include <string>

namespace elixir::probe {

// Describes the hardware that rates depend on: the visible GPUs with their memory, the processor,
// how many processors this process may use, and their NUMA nodes. Without `on_gpus`, the CPU is the
// device. The number of GPUs is not part of it. Hosts with equal hardware may share rates. Returns
// "" if CUDA shows no GPU.
std::string hardware_of(bool on_gpus);

}  // namespace elixir::probe
