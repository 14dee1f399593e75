#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dynamic_library.h"
#include "base/status.h"
#include "client/plan/options.h"

namespace elixir::probe {

// GB/s of 1e9 bytes, all devices together.
struct LinkRates {
  double h2d_gb_s = 0, d2h_gb_s = 0;
  double both_gb_s = 0;  // sum of both directions while both run
};

struct HostLinksOptions {
  std::optional<HostLink> link = {};  // every device emulates it; empty: memory copies
  uint32_t devices = 1;               // all copy at once; a thread per device and direction
  double window_s = 0.06;             // length of one measurement
  int rounds = 3;                     // the best counts, because other work only lowers a rate
  uint64_t buffer_bytes = uint64_t{64} << 20;  // per buffer, four per device; beyond the caches
};

// The links of HostDevices. Throws Error.
LinkRates measure_host_links(const HostLinksOptions& options);

struct GpuLinks {
  LinkRates rates;  // summed over the GPUs, which were measured one after another
  uint32_t gpus = 0;
  std::string name;           // the first GPU's
  uint64_t memory_bytes = 0;  // the least of all GPUs
  std::string
      pinning_error;  // why the rates are those of memory that is not page-locked; "": it is
};

// Measures the links of the first `gpus` GPUs (0: of all visible GPUs) with the probe of
// libelixir_cuda.so and copies of `copy_bytes`. Returns kUnavailable if the library cannot be
// loaded, if fewer GPUs are visible, or if one of them cannot be used. Returns kVersionMismatch if
// the library's answer has another format.
Result<GpuLinks> measure_gpu_links(const LibrarySearch& library, uint32_t gpus, size_t copy_bytes);

}  // namespace elixir::probe
