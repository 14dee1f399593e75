#include "planner/report/plan_answer.h"

#include "base/units.h"
#include "planner/plan/plan_json.h"

namespace elixir::planner {

std::string lacks_text(uint64_t gpu_bytes, uint64_t host_bytes) {
  if (gpu_bytes > 0) return "GPU " + format_bytes(gpu_bytes);
  return "host " + format_bytes(host_bytes);
}

Result<PlanAnswer> plan_answer(const ModelProfile& profile, const Machine& machine,
                               const PlanRequest& request) {
  const Result<PlannedStep> planned = make_plan(profile, machine, request);
  if (planned.ok()) {
    return PlanAnswer{.fits = true,
                      .step_s = planned->plan.predicted.step_s,
                      .tokens_s = tokens_a_second(planned->plan),
                      .gpu_bytes = planned->plan.bytes.gpu(),
                      .host_bytes = planned->plan.bytes.host()};
  }
  if (planned.status().code() != Code::kResourceExhausted) return planned.status();
  const Result<LeastPlan> least = least_plan(profile, machine, request);
  if (!least.ok()) return least.status();
  return PlanAnswer{.gpu_bytes = least->bytes.gpu(),
                    .host_bytes = least->bytes.host(),
                    .lacks = lacks_text(least->gpu_short_bytes, least->host_short_bytes)};
}

}  // namespace elixir::planner
