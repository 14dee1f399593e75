#include "planner/plan/plan.h"

#include <algorithm>

namespace elixir::planner {

double tokens_a_second(const Plan& plan) {
  const double step_s = plan.predicted.step_s;
  return step_s > 0 ? static_cast<double>(plan.tokens) * plan.gpus * plan.accumulate / step_s : 0;
}

std::vector<uint64_t> thinned_curve(const std::vector<uint64_t>& curve, size_t most) {
  const size_t points = std::min(curve.size(), most);
  std::vector<uint64_t> result(points);
  for (size_t i = 0; i < curve.size(); ++i) {
    uint64_t& point = result[i * points / curve.size()];
    point = std::max(point, curve[i]);
  }
  return result;
}

}  // namespace elixir::planner
