#pragma once

// What an elixird gets out of this machine: its memory, and its update of it. The memory is shared,
// as an elixird's is, and all processors that this process may use work on it.

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace elixir::probe {

struct CpuRateOptions {
  // How many gradients to sum in the update, each to be measured; 1 to optim::kMaxGrads.
  std::vector<uint32_t> trainers = {1};
  // BF16 parameters, as far as memory allows; 0: far beyond the caches, which would flatter.
  uint64_t numel = 0;
  // Everything once a round. The best counts: what else runs only takes away.
  int rounds = 5;
};

struct CpuRates {
  double dram_gb_s = 0;                 // read and written in place, of 1e9 bytes
  std::vector<double> update_gparam_s;  // by options.trainers, 1e9 parameters
  uint64_t numel = 0;                   // that were updated
};

// kResourceExhausted when not even a sixteenth of the memory at hand holds a few slices.
Result<CpuRates> measure_cpu(const CpuRateOptions& options);

}  // namespace elixir::probe
