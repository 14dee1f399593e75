#pragma once

// The rates that an elixird reaches on this machine: of its memory, and of its update. The memory
// is shared, as an elixird's is, and all processors that this process may use work on it.

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace elixir::probe {

struct CpuRateOptions {
  // Numbers of gradients that the update sums, each one measured; 1 to optim::kMaxGrads.
  std::vector<uint32_t> trainers = {1};
  // BF16 parameters, as far as memory allows. 0: far more than the caches hold, which would
  // flatter.
  uint64_t numel = 0;
  // Each round measures everything once. The best counts, because other work only lowers a rate.
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
