#include "client/plan/plan_check.h"

#include "base/check.h"
#include "planner/report/plan_text.h"

namespace elixir {

std::optional<std::string> PlanCheck::add(uint32_t step, const Roofline& measured,
                                          uint64_t gpu_bytes) {
  if (step < kFirstStep || step > kLastStep || plan_.predicted.step_s <= 0) return std::nullopt;
  sum_.step_ms += measured.step_ms;
  sum_.compute_ms += measured.compute_ms;
  sum_.h2d_ms += measured.h2d_ms;
  sum_.d2h_ms += measured.d2h_ms;
  sum_.update_ms += measured.update_ms;
  ++steps_;
  if (step != kLastStep) return std::nullopt;
  ELIXIR_CHECK(steps_ <= kLastStep - kFirstStep + 1, "{} steps from {} to {}", steps_, kFirstStep,
               kLastStep);
  const double to_s = 1e-3 / steps_;
  return planner::measured_text(plan_, {.step_s = to_s * sum_.step_ms,
                                        .legs = {.compute_s = to_s * sum_.compute_ms,
                                                 .h2d_s = to_s * sum_.h2d_ms,
                                                 .d2h_s = to_s * sum_.d2h_ms,
                                                 .update_s = to_s * sum_.update_ms},
                                        .gpu_bytes = gpu_bytes});
}

}  // namespace elixir
