#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dynamic_library.h"
#include "base/status.h"
#include "client/plan/options.h"

namespace elixir::probe {

// GB/s of 1e9 bytes, of all devices together.
struct LinkRates {
  double h2d_gb_s = 0, d2h_gb_s = 0;
  double both_gb_s = 0;  // their sum while both run
};

struct HostLinksOptions {
  std::optional<HostLink> link = {};  // emulated by every device; without, memory copies
  uint32_t devices = 1;               // that copy at the same time, a thread each and direction
  double window_s = 0.06;             // of one measurement
  int rounds = 3;                     // the best counts: what else runs only takes away
  uint64_t buffer_bytes = uint64_t{64} << 20;  // four a device; beyond the caches
};

// The links of HostDevices. Throws Error.
LinkRates measure_host_links(const HostLinksOptions& options);

struct GpuLinks {
  LinkRates rates;  // summed over the GPUs, which were measured one after another
  uint32_t gpus = 0;
  std::string name;           // of the first
  uint64_t memory_bytes = 0;  // the least that one has
  std::string
      pinning_error;  // why the rates are those of memory that is not page-locked; "": it is
};

// The links of the first `gpus` GPUs (0: of all that show), through the probe of libelixir_cuda.so
// with copies of `copy_bytes`. kUnavailable when the library cannot be loaded, fewer GPUs show, or
// one of them cannot be used; kVersionMismatch when the library answers in another form.
Result<GpuLinks> measure_gpu_links(const LibrarySearch& library, uint32_t gpus, size_t copy_bytes);

}  // namespace elixir::probe
