#pragma once

#include <cstdint>

#include "client/plan/step_report.h"

namespace elixir {

// One step's legs, in nanoseconds, and the bytes and parameters that they moved.
struct StepLegs {
  uint32_t step = 0;        // its number; 0: none is known yet
  uint64_t step_ns = 0;     // from step() to step(); on a GPU, by its own clock
  uint64_t exposed_ns = 0;  // the part of step_ns in which operators waited for chunks or for
                            // gradients on their way; on a GPU, also from a step's last operator to
                            // the next one's first
  uint64_t h2d_ns = 0, d2h_ns = 0;                  // busy time of each direction of the link
  uint64_t h2d_done_bytes = 0, d2h_done_bytes = 0;  // moved in that time
  uint64_t update_ns = 0;                           // elixird's work on the last step that it
                                                    // finished
  uint64_t update_numel = 0;                        // parameters updated in it
};

// Keeps the greatest rate of each leg in any step of this run: the limit for later steps. Williams
// et al., "Roofline", CACM 2009, with a step's four legs.
class RooflineMeter {
 public:
  Roofline add(const StepLegs& legs);

 private:
  double h2d_bytes_per_ns_ = 0, d2h_bytes_per_ns_ = 0, update_numel_per_ns_ = 0;
};

}  // namespace elixir
