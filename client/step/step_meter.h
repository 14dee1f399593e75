#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "client/device/device.h"
#include "client/plan/roofline.h"
#include "client/step/step_trace.h"

namespace elixir {

// Measures how a step spends its time. Owned by the thread that runs the model. While that thread
// waits, autograd's thread owns it.
//
// On a CPU, operators run when they are called. The times are the host's, from step() to step(). A
// GPU works behind the host (Device::runs_behind_host). The times are its own, from the end of one
// step's operators to the end of the next one's, and are known when it is done.
class StepMeter {
 public:
  // `trace` may be null.
  StepMeter(Device& device, StepTrace* trace);

  // Says who waits while a Stall lives.
  enum class Waits : uint8_t {
    kHost,       // only the host waits, outside of a step's operators: operators wait already, or
                 // not yet
    kOperators,  // the next enqueued operators wait, for a chunk or for gradients on their way
  };
  class Stall {
   public:
    explicit Stall(StepMeter& meter, Waits waits = Waits::kOperators)
        : meter_(meter),
          begin_ns_(monotonic_ns()),
          resumes_(waits == Waits::kOperators && meter.device_.operators_wait()) {}
    ~Stall() { meter_.end_stall(begin_ns_, resumes_); }
    Stall(const Stall&) = delete;

   private:
    StepMeter& meter_;
    const int64_t begin_ns_;
    const bool resumes_;
  };

  // Call it when the next operator is about to be enqueued.
  void operators_run() {
    if (behind_host_) device_.operators_run();
  }
  // Call it when all operators of `step` are enqueued.
  void operators_end(uint32_t step) {
    if (behind_host_) device_.operators_end(step);
  }
  // Call it when the host is about to post `step`.
  void end_step(uint32_t step);

  // Returns each step whose times are known, once, in order. The caller fills in the update's leg.
  // Waits for nothing. A CPU's step is known after end_step().
  std::optional<StepLegs> next();

  Roofline roofline(const StepLegs& legs) { return roofline_.add(legs); }

 private:
  void end_stall(int64_t begin_ns, bool resumes);
  StepLegs legs_of(const OperatorTimes& times);

  Device& device_;
  StepTrace* const trace_;
  const bool behind_host_;
  int64_t stall_end_ns_;  // end of the last stall
  RooflineMeter roofline_;
  int64_t step_begin_ns_;
  uint64_t exposed_ns_ = 0;
  std::optional<OperatorTimes> ended_;  // on a CPU: the step that ended, until next() takes it
  StepLegs totals_;                     // the device's running totals at the last known step
};

}  // namespace elixir
