#pragma once

namespace elixir {

// Is called when a checkpointed region begins and ends, on the thread that runs it. This happens in
// forward, and in backward around the region's recomputation and the gradients that follow. Regions
// inside of a region do not count.
class RegionObserver {
 public:
  virtual ~RegionObserver() = default;
  virtual void region_begins() = 0;
  virtual void region_ends() noexcept = 0;
};

// Whether this thread is inside a checkpointed region. In forward a region runs without gradients,
// but it is no evaluation.
bool in_checkpointed_region();

// Sets this thread's observer, or removes it with null. Returns the previous one.
RegionObserver* observe_regions(RegionObserver* observer);

}  // namespace elixir
