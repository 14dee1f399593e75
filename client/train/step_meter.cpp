#include "client/train/step_meter.h"

namespace elixir {

StepMeter::StepMeter(Device& device, StepTrace* trace)
    : device_(device), trace_(trace), stall_end_ns_(monotonic_ns()), step_begin_ns_(stall_end_ns_) {
  device.time_copies();
}

void StepMeter::end_stall(int64_t begin_ns) {
  const int64_t now_ns = monotonic_ns();
  exposed_ns_ += static_cast<uint64_t>(now_ns - begin_ns);
  if (trace_ != nullptr) trace_->add_compute(stall_end_ns_, begin_ns);
  stall_end_ns_ = now_ns;
}

StepLegs StepMeter::end_step() {
  const int64_t now_ns = monotonic_ns();
  StepLegs totals;
  totals.h2d_ns = device_.h2d_busy_ns();
  totals.d2h_ns = device_.d2h_busy_ns();
  totals.h2d_done_bytes = device_.h2d_done_bytes();
  totals.d2h_done_bytes = device_.d2h_done_bytes();
  totals.h2d_bytes = device_.h2d_bytes();
  totals.d2h_bytes = device_.d2h_bytes();
  StepLegs legs;
  legs.step_ns = static_cast<uint64_t>(now_ns - step_begin_ns_);
  legs.exposed_ns = exposed_ns_;
  legs.h2d_ns = totals.h2d_ns - totals_.h2d_ns;
  legs.d2h_ns = totals.d2h_ns - totals_.d2h_ns;
  legs.h2d_done_bytes = totals.h2d_done_bytes - totals_.h2d_done_bytes;
  legs.d2h_done_bytes = totals.d2h_done_bytes - totals_.d2h_done_bytes;
  legs.h2d_bytes = totals.h2d_bytes - totals_.h2d_bytes;
  legs.d2h_bytes = totals.d2h_bytes - totals_.d2h_bytes;
  totals_ = totals;
  exposed_ns_ = 0;
  step_begin_ns_ = now_ns;
  return legs;
}

}  // namespace elixir
