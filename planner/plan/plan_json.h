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
// "compute": {"products_s", "attention_s", "memory_s", "launch_s"} or null, "compute_s", "h2d_s",
// "d2h_s", "g2g_s", "update_s", "exposed_s", "binding", "gains_s": {leg: seconds}, "tflops", "mfu",
// "tokens_s", "assumed_fp32", "immediate_step_s", "early_step_s", "swing_step_s",
// "swing_without_s", "swing_step_stride", "swing_why"}, "bytes": {...}, "gpu_memory_bytes",
// "activation_curve": [bytes, ...], ...}: see docs/planner.md.
std::string to_json(const Plan& plan);

// Questions that a user asks beside a plan.
struct PlanExtras {
  std::string largest;  // asked for the largest that fits: "batch", "seq", "layers"; "": not asked
  uint64_t largest_value = 0;
  uint64_t largest_on_device = 0;  // without activations in host memory
  double tokens = 0;               // in the whole training; 0: not asked
  double price_per_gpu_hour = 0;
};
// The training on extras.tokens.
struct TrainingRun {
  double days = 0, gpu_hours = 0, cost = 0;
};
TrainingRun training_run(const Plan& plan, const PlanExtras& extras);

// Like to_json(plan), with {"largest": {"what", "value", "on_device"}, "run": {"tokens", "days",
// "gpu_hours", "cost"}} for what was asked. cost is null without a price.
std::string to_json(const Plan& plan, const PlanExtras& extras);

// Reads a plan back, so that a trainer can run it again: to_json() of the result is the same text.
// Predicted times, and what is for people, may be missing. Returns kBadInput like
// profile_from_json(), and for the plan of an earlier release that does not say all.
Result<Plan> plan_from_json(std::string_view text);

}  // namespace elixir::planner
