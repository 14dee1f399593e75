#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/plan/plan.h"

namespace elixir::planner {

// {"chunk_numel", "n_chunks", "waste_ratio", "rcache_blocks", "long_blocks", "long_numel", "order":
// [name, ...], "own_chunks": [name, ...], "dtype", "update", "spare_slots", "placement": {"gpu",
// "cpu", "swing"}, "exchange": "host"|"collective", "swing_stride", "equation_stride",
// "u_allowed_bytes", "benefit_i", "benefit_j", "first": "rcache"|"chunks", "predicted": {"step_s",
// "compute_s", "h2d_s", "d2h_s", "g2g_s", "update_s", "exposed_s", "binding", "gains_s": {leg:
// seconds}, "tflops", "mfu", "tokens_s", "assumed_fp32", "immediate_step_s", "swing_step_s",
// "swing_step_stride", "swing_why"}, "bytes": {...}, ...}: docs/planner.md.
std::string to_json(const Plan& plan);

// What was asked beside a plan.
struct PlanExtras {
  std::string largest;  // of what the plan is the largest: "batch", "seq", "layers"; "": none
  uint64_t largest_value = 0;
  double tokens = 0;  // of a whole training; 0: not asked
  double price_per_gpu_hour = 0;
};
// Of the training on extras.tokens.
struct TrainingRun {
  double days = 0, gpu_hours = 0, cost = 0;
};
TrainingRun training_run(const Plan& plan, const PlanExtras& extras);

// The same with {"largest": {"what", "value"}, "run": {"tokens", "days", "gpu_hours", "cost"}} for
// what was asked; cost is null without a price.
std::string to_json(const Plan& plan, const PlanExtras& extras);

// What a trainer needs to run a plan again: of the above, all but what is there for
// people, and the predicted times where they are there. kBadInput as profile_from_json(), also for
// the plan of an earlier release, which does not say all.
Result<Plan> plan_from_json(std::string_view text);

}  // namespace elixir::planner
