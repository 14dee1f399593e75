#include "client/plan/roofline.h"

#include <algorithm>
#include <iterator>

namespace elixir {
namespace {

constexpr double kNsPerMs = 1e6;

// What the leg takes at the best rate so far, which this step may raise.
double limit_ns(uint64_t amount, uint64_t took_ns, double* best_rate) {
  if (amount == 0 || took_ns == 0) return 0;
  *best_rate = std::max(*best_rate, static_cast<double>(amount) / static_cast<double>(took_ns));
  return static_cast<double>(amount) / *best_rate;
}

}  // namespace

Roofline RooflineMeter::add(const StepLegs& legs) {
  const uint64_t compute_ns = legs.step_ns - std::min(legs.step_ns, legs.exposed_ns);
  Roofline roofline;
  roofline.step = legs.step;
  roofline.step_ms = static_cast<double>(legs.step_ns) / kNsPerMs;
  roofline.compute_ms = static_cast<double>(compute_ns) / kNsPerMs;
  roofline.h2d_ms = static_cast<double>(legs.h2d_ns) / kNsPerMs;
  roofline.d2h_ms = static_cast<double>(legs.d2h_ns) / kNsPerMs;
  roofline.update_ms = static_cast<double>(legs.update_ns) / kNsPerMs;
  roofline.exposed_ms = roofline.step_ms - roofline.compute_ms;
  const struct {
    planner::Leg leg;
    double ns;
  } limits[] = {
      {planner::Leg::kCompute, static_cast<double>(compute_ns)},
      {planner::Leg::kH2d, limit_ns(legs.h2d_done_bytes, legs.h2d_ns, &h2d_bytes_per_ns_)},
      {planner::Leg::kD2h, limit_ns(legs.d2h_done_bytes, legs.d2h_ns, &d2h_bytes_per_ns_)},
      {planner::Leg::kUpdate, limit_ns(legs.update_numel, legs.update_ns, &update_numel_per_ns_)},
  };
  const auto binding = std::max_element(std::begin(limits), std::end(limits),
                                        [](const auto& a, const auto& b) { return a.ns < b.ns; });
  roofline.binding = binding->leg;
  if (binding->ns > 0) roofline.time_over_limit = static_cast<double>(legs.step_ns) / binding->ns;
  return roofline;
}

}  // namespace elixir
