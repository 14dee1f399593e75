#pragma once

#include <cstdint>
#include <utility>

#include "client/plan/step_report.h"

namespace elixir {

// Whether outcomes have asked for a save, alike on all ranks, for it hangs on outcomes alone.
//
// One signal reaches ranks at different times, and where the outcome of step s is heard of only
// after step s + 1 was posted, a rank that is signalled between the two asks a second time in
// s + 1: that is the first one's save. From s + 2 on a rank has heard of it before it asks.
class SaveAsks {
 public:
  // Each step's outcome, in their order.
  void hear(const StepOutcome& outcome) {
    if (!outcome.save_asked) return;
    const bool again = heard_ && outcome.step == step_ + 1 && (stop_heard_ || !outcome.stop_asked);
    if (again) return;
    heard_ = true;
    step_ = outcome.step;
    stop_heard_ = outcome.stop_asked;
    due_ = true;
    stop_ = stop_ || outcome.stop_asked;
  }

  bool due() const { return due_; }
  // A save is begun: what was asked for is done. Whether the run is to end after it.
  bool take_stop() {
    due_ = false;
    return std::exchange(stop_, false);
  }

 private:
  bool heard_ = false, stop_heard_ = false;
  uint32_t step_ = 0;  // whose outcome was the last to ask
  bool due_ = false, stop_ = false;
};

}  // namespace elixir
