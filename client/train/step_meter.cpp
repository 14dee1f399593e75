#include "client/train/step_meter.h"

namespace elixir {

StepMeter::StepMeter(Device& device) : device_(device), step_begin_ns_(monotonic_ns()) {}

StepLegs StepMeter::end_step() {
  const int64_t now_ns = monotonic_ns();
  StepLegs totals;
  totals.h2d_ns = device_.h2d_busy_ns();
  totals.d2h_ns = device_.d2h_busy_ns();
  totals.h2d_bytes = device_.h2d_bytes();
  totals.d2h_bytes = device_.d2h_bytes();
  StepLegs legs;
  legs.step_ns = static_cast<uint64_t>(now_ns - step_begin_ns_);
  legs.exposed_ns = exposed_ns_;
  legs.h2d_ns = totals.h2d_ns - totals_.h2d_ns;
  legs.d2h_ns = totals.d2h_ns - totals_.d2h_ns;
  legs.h2d_bytes = totals.h2d_bytes - totals_.h2d_bytes;
  legs.d2h_bytes = totals.d2h_bytes - totals_.d2h_bytes;
  totals_ = totals;
  exposed_ns_ = 0;
  step_begin_ns_ = now_ns;
  return legs;
}

}  // namespace elixir
