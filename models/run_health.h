#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "client/plan/step_report.h"

namespace elixir {

// Watches whether a run's steps still have a finite loss and a finite gradient norm. It uses only
// outcomes, so all ranks get the same result.
//
// A step is good, bad, or neither. It is bad if its loss is not finite, or if it was skipped
// because a gradient was not finite. It is neither if a dynamic loss scale above 1 skips it: then
// the scale was too large, and it falls.
class RunHealth {
 public:
  // limit: this number of bad steps in a row ends the run; 0: none does. scale_adapts: the loss
  // scale is dynamic.
  RunHealth(int64_t limit, bool scale_adapts) : limit_(limit), scale_adapts_(scale_adapts) {}

  // Call with each step's outcome, in order. `step` counts the run's steps, restarts included.
  void hear(const StepOutcome& outcome, uint64_t step) {
    if (diverged()) return;  // final
    const bool finite_loss = std::isfinite(outcome.mean_loss);
    const bool no_norm = outcome.skipped || std::isinf(outcome.grad_norm);
    if (finite_loss && no_norm && scale_adapts_ && outcome.loss_scale > 1) return;
    last_ = step;
    finite_loss_ = finite_loss;
    if (finite_loss && !no_norm) {
      bad_steps_ = 0;
      return;
    }
    if (bad_steps_++ == 0) first_bad_ = step;
    loss_ = outcome.mean_loss;
  }

  bool last_good() const { return bad_steps_ == 0; }
  bool diverged() const { return limit_ > 0 && bad_steps_ >= limit_; }
  // For the end of the run: its last loss is not finite.
  bool ends_badly() const { return limit_ > 0 && !finite_loss_; }

  // "the loss was nan in the 20 steps 16 to 35". REQUIRES: !last_good().
  std::string text() const;

 private:
  const int64_t limit_;
  const bool scale_adapts_;
  int64_t bad_steps_ = 0;  // in a row
  uint64_t first_bad_ = 0, last_ = 0;
  bool finite_loss_ = true;
  double loss_ = 0;
};

}  // namespace elixir
