#pragma once

#include <cstdint>
#include <utility>

#include "client/plan/step_report.h"

namespace elixir {

// Whether outcomes have asked for a save. It uses only outcomes, so all ranks get the same result.
//
// One signal reaches ranks at different times. If a rank hears the outcome of step s only after it
// has posted step s + 1, and gets the signal between the two, it asks a second time in s + 1. This
// second request means the first one's save. From s + 2 on a rank has heard of the first request
// before it asks.
class SaveAsks {
 public:
  // Call with each step's outcome, in order.
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
  // Call when a save begins: it serves the request. Returns whether the run must end after it.
  bool take_stop() {
    due_ = false;
    return std::exchange(stop_, false);
  }

 private:
  bool heard_ = false, stop_heard_ = false;
  uint32_t step_ = 0;  // the last step whose outcome asked
  bool due_ = false, stop_ = false;
};

}  // namespace elixir
