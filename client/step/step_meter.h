#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "client/device/device.h"
#include "client/plan/roofline.h"
#include "client/step/step_trace.h"

namespace elixir {

// Where the time of a step goes. Owned by the thread that runs the model, and by autograd's while
// that one waits.
//
// On a CPU operators run when they are called, and the times are the host's, from step() to step().
// A GPU works behind the host (Device::runs_behind_host): the times are its own, from the end of
// one step's operators to the end of the next one's, and are known when it is done.
class StepMeter {
 public:
  // `trace` may be null.
  StepMeter(Device& device, StepTrace* trace);

  // Who waits while a Stall lives.
  enum class Waits : uint8_t {
    kHost,       // operators wait already, or do not yet: outside of a step's operators
    kOperators,  // operators that are enqueued next, for a chunk or for gradients on their way
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

  // The next operator is about to be enqueued.
  void operators_run() {
    if (behind_host_) device_.operators_run();
  }
  // Those of `step` are.
  void operators_end(uint32_t step) {
    if (behind_host_) device_.operators_end(step);
  }
  // The host is about to post `step`.
  void end_step(uint32_t step);

  // Steps whose times are known, in order, each once; the update's legs are the caller's. Waits for
  // nothing. A CPU's step is known after end_step().
  std::optional<StepLegs> next();

  Roofline roofline(const StepLegs& legs) { return roofline_.add(legs); }

 private:
  void end_stall(int64_t begin_ns, bool resumes);
  StepLegs legs_of(const OperatorTimes& times);

  Device& device_;
  StepTrace* const trace_;
  const bool behind_host_;
  int64_t stall_end_ns_;  // of the last one
  RooflineMeter roofline_;
  int64_t step_begin_ns_;
  uint64_t exposed_ns_ = 0;
  std::optional<OperatorTimes> ended_;  // of a CPU
  StepLegs totals_;                     // the device's running totals when a step was known last
};

}  // namespace elixir
