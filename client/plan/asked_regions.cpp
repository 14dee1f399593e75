#include "client/plan/asked_regions.h"

#include <algorithm>

#include "base/units.h"
#include "planner/activations.h"
#include "planner/plan/plan.h"

namespace elixir {

Result<RegionPlan> asked_regions(const Options& options) {
  using enum Activations::Mode;
  const Activations& asked = options.activations;
  const planner::Plan* const plan = options.plan.get();
  if (asked.mode == kProducts && (asked.products == 0 || asked.products > kMostRegions)) {
    return error(Code::kInvalidArgument, "activations.products = {}: it must be in [1, {}]",
                 asked.products, kMostRegions);
  }
  if (asked.mode == kAuto) return plan != nullptr ? plan->region_plan : RegionPlan();
  if (plan == nullptr || plan->region_plan.regions == 0) {
    if (asked.mode == kProducts) return RegionPlan{.keep_products = asked.products};
    return region_plan_for(asked, kMostRegions);
  }
  const uint64_t sent_bytes = plan->bytes.host_activations / std::max(plan->gpus / plan->nodes, 1U);
  if (asked.host_bytes > 0 && sent_bytes > asked.host_bytes) {
    return error(Code::kInvalidArgument,
                 "--activations {}: the plan sends {} of each GPU to host memory; leave it out, or "
                 "make a plan with it",
                 to_text(asked), format_bytes(sent_bytes));
  }
  if (is_plan_for(asked, plan->region_plan)) return plan->region_plan;
  return error(Code::kInvalidArgument,
               "--activations {}: in the plan {} of {} regions keep everything, {} keep their "
               "products and {} send some of it to host memory; leave it out, or make a plan with "
               "it",
               to_text(asked), plan->region_plan.keep_all, plan->region_plan.regions,
               plan->region_plan.keep_products,
               std::max(plan->region_plan.host_products, plan->region_plan.host_boundaries));
}

}  // namespace elixir
