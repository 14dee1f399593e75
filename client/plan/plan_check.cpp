#include "client/plan/plan_check.h"

#include <algorithm>

#include "base/check.h"

namespace elixir {
namespace {

struct Spread {
  double median = 0;
  bool steady = false;
};

// Steady: but for a fifth of the steps at each end, all are near the median.
Spread spread_of(const std::vector<Roofline>& steps, double Roofline::*leg) {
  constexpr double kNear = 0.1;
  std::vector<double> sorted;
  for (const Roofline& step : steps) sorted.push_back(step.*leg);
  std::sort(sorted.begin(), sorted.end());
  const size_t fifth = sorted.size() / 5;
  const double median = sorted[sorted.size() / 2];
  const double low = sorted[fifth], high = sorted[sorted.size() - 1 - fifth];
  return {median, low >= (1 - kNear) * median && high <= (1 + kNear) * median};
}

}  // namespace

std::optional<planner::MeasuredStep> PlanCheck::add(uint32_t step, const Roofline& measured,
                                                    uint64_t gpu_bytes) {
  if (step < kFirstStep || step > kLastStep || plan_.predicted.step_s <= 0) return std::nullopt;
  steps_.push_back(measured);
  if (step != kLastStep) return std::nullopt;
  ELIXIR_CHECK(steps_.size() <= kLastStep - kFirstStep + 1, "{} steps from {} to {}", steps_.size(),
               kFirstStep, kLastStep);
  constexpr double kToSeconds = 1e-3;
  planner::MeasuredStep whole{.gpu_bytes = gpu_bytes};
  whole.step_s = kToSeconds * spread_of(steps_, &Roofline::step_ms).median;
  const auto take = [&](double Roofline::*leg, double* seconds, planner::Leg name) {
    const Spread spread = spread_of(steps_, leg);
    *seconds = kToSeconds * spread.median;
    if (spread.steady) whole.steady.push_back(name);
  };
  take(&Roofline::compute_ms, &whole.legs.compute_s, planner::Leg::kCompute);
  take(&Roofline::h2d_ms, &whole.legs.h2d_s, planner::Leg::kH2d);
  take(&Roofline::d2h_ms, &whole.legs.d2h_s, planner::Leg::kD2h);
  take(&Roofline::update_ms, &whole.legs.update_s, planner::Leg::kUpdate);
  return whole;
}

}  // namespace elixir
