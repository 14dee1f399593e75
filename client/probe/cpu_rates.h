#pragma once

// The rates that an elixird reaches on this machine: memory bandwidth, and parameters updated per
// second. The memory is shared, as an elixird's is. All processors that this process may use work
// on it.

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace elixir::probe {

struct CpuRateOptions {
  // Numbers of gradients that the update sums, each from 1 to optim::kMaxGrads. Each number is
  // measured.
  std::vector<uint32_t> trainers = {1};
  // The number of BF16 parameters, or fewer if memory is short. 0: far more than the caches hold,
  // because caches would flatter the rates.
  uint64_t numel = 0;
  // Each round measures everything once. The best counts, because other work only lowers a rate.
  int rounds = 5;
};

struct CpuRates {
  double dram_gb_s = 0;                 // reads and writes in place; GB of 1e9 bytes
  std::vector<double> update_gparam_s;  // by options.trainers; in 1e9 parameters per second
  uint64_t numel = 0;                   // number of updated parameters
};

// Returns kResourceExhausted if a sixteenth of the free memory does not hold a few slices.
Result<CpuRates> measure_cpu(const CpuRateOptions& options);

}  // namespace elixir::probe
