#pragma once

#include <cstdint>

#include "base/clock.h"
#include "client/device/device.h"
#include "client/train/roofline.h"
#include "client/train/step_trace.h"

namespace elixir {

// Where the time between two calls of step() goes. Owned by the thread that runs the model, and by
// autograd's while that one waits.
class StepMeter {
 public:
  // `trace` may be null.
  StepMeter(Device& device, StepTrace* trace);

  // While it lives, operators wait for a chunk or for gradients on their way.
  class Stall {
   public:
    explicit Stall(StepMeter& meter) : meter_(meter), begin_ns_(monotonic_ns()) {}
    ~Stall() { meter_.end_stall(begin_ns_); }
    Stall(const Stall&) = delete;

   private:
    StepMeter& meter_;
    const int64_t begin_ns_;
  };

  // A step has ended: what it took, since the last call. The update's legs are the caller's.
  StepLegs end_step();

  Roofline roofline(const StepLegs& legs) { return roofline_.add(legs); }

 private:
  void end_stall(int64_t begin_ns);

  Device& device_;
  StepTrace* const trace_;
  int64_t stall_end_ns_;  // of the last one
  RooflineMeter roofline_;
  int64_t step_begin_ns_;
  uint64_t exposed_ns_ = 0;
  StepLegs totals_;  // the device's running totals at the end of the last step
};

}  // namespace elixir
