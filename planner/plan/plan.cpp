#include "planner/plan/plan.h"

namespace elixir::planner {

uint64_t PlanBytes::gpu() const {
  return gpu_rcache + gpu_grad_blocks + gpu_states + gpu_streamed + gpu_activations + gpu_buffers;
}

uint64_t PlanBytes::host() const { return host_params + host_grads + host_states; }

double tokens_a_second(const Plan& plan) {
  const double step_s = plan.predicted.step_s;
  return step_s > 0 ? static_cast<double>(plan.tokens) * plan.gpus * plan.accumulate / step_s : 0;
}

}  // namespace elixir::planner
