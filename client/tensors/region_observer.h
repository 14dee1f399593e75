#pragma once

namespace elixir {

// Told on the thread that runs them when a checkpointed region begins and ends: in forward, and in
// backward around its recomputation and the gradients that follow. Not told of regions within one.
class RegionObserver {
 public:
  virtual ~RegionObserver() = default;
  virtual void region_begins() = 0;
  virtual void region_ends() noexcept = 0;
};

// Whether this thread is inside a checkpointed region: it runs without gradients in forward, and is
// no evaluation.
bool in_checkpointed_region();

// This thread's observer from now on, or none; returns the one before.
RegionObserver* observe_regions(RegionObserver* observer);

}  // namespace elixir
