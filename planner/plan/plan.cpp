#include "planner/plan/plan.h"

namespace elixir::planner {

double tokens_a_second(const Plan& plan) {
  const double step_s = plan.predicted.step_s;
  return step_s > 0 ? static_cast<double>(plan.tokens) * plan.gpus * plan.accumulate / step_s : 0;
}

}  // namespace elixir::planner
