#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/tensors/sent_part.h"

namespace elixir {

// Is called when a checkpointed region begins and ends, on the thread that runs it. This happens in
// forward, and in backward around the region's second run and the gradients that follow. Regions
// inside of a region do not count, but their second runs do.
class RegionObserver {
 public:
  virtual ~RegionObserver() = default;
  // `number` counts the regions of a pass in forward; empty: not known. `boundaries` only in
  // forward: inputs that can be sent to host memory.
  virtual void region_begins(std::optional<uint32_t> number,
                             const std::vector<Boundary>& boundaries) = 0;
  virtual void region_ends() noexcept = 0;
  // Around a region's second run, without the gradients that follow. Its last `left_out` operators
  // ran this once, to be known, and run no more (client/tensors/second_run).
  virtual void second_run_begins() = 0;
  virtual void second_run_ends(uint32_t left_out) noexcept = 0;
};

// Whether this thread is inside a checkpointed region. In forward a region runs without gradients,
// but it is no evaluation.
bool in_checkpointed_region();

// Sets this thread's observer, or removes it with null. Returns the previous one. Where there was
// none, the new observer sees second runs of which nothing is known yet.
RegionObserver* observe_regions(RegionObserver* observer);

}  // namespace elixir
