#include "client/step/step_meter.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace elixir {

StepMeter::StepMeter(Device& device, StepTrace* trace)
    : device_(device),
      trace_(trace),
      behind_host_(device.runs_behind_host()),
      stall_end_ns_(monotonic_ns()),
      step_begin_ns_(stall_end_ns_) {
  device.time_copies();
}

// A destructor's: what the device refuses here it refuses to the next operator, too, which throws.
void StepMeter::end_stall(int64_t begin_ns, bool resumes) {
  const int64_t now_ns = monotonic_ns();
  exposed_ns_ += static_cast<uint64_t>(now_ns - begin_ns);
  if (behind_host_) {
    try {
      if (resumes) device_.operators_run();
    } catch (const std::exception& failure) {
      log_warn("device_failed", "text=\"{}\"", failure.what());
    }
  } else if (trace_ != nullptr) {
    trace_->add_compute(stall_end_ns_, begin_ns);
  }
  stall_end_ns_ = now_ns;
}

void StepMeter::end_step(uint32_t step) {
  const int64_t now_ns = monotonic_ns();
  const int64_t begin_ns = std::exchange(step_begin_ns_, now_ns);
  const uint64_t exposed_ns = std::exchange(exposed_ns_, 0);
  if (behind_host_) return;
  const auto step_ns = static_cast<uint64_t>(now_ns - begin_ns);
  ended_ = {step, step_ns, step_ns - std::min(step_ns, exposed_ns)};
}

std::optional<StepLegs> StepMeter::next() {
  const std::optional<OperatorTimes> times =
      behind_host_ ? device_.take_operator_times() : std::exchange(ended_, std::nullopt);
  if (!times) return std::nullopt;
  return legs_of(*times);
}

StepLegs StepMeter::legs_of(const OperatorTimes& times) {
  StepLegs totals;
  const LinkTimes link = device_.link_times();
  totals.h2d_ns = link.h2d_busy_ns;
  totals.d2h_ns = link.d2h_busy_ns;
  totals.h2d_done_bytes = link.h2d_done_bytes;
  totals.d2h_done_bytes = link.d2h_done_bytes;
  StepLegs legs;
  legs.step = times.step;
  legs.step_ns = times.step_ns;
  legs.exposed_ns = legs.step_ns - std::min(legs.step_ns, times.busy_ns);
  legs.h2d_ns = totals.h2d_ns - totals_.h2d_ns;
  legs.d2h_ns = totals.d2h_ns - totals_.d2h_ns;
  legs.h2d_done_bytes = totals.h2d_done_bytes - totals_.h2d_done_bytes;
  legs.d2h_done_bytes = totals.d2h_done_bytes - totals_.d2h_done_bytes;
  totals_ = totals;
  return legs;
}

}  // namespace elixir
