#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

// A plan as a row of a table has it.
struct PlanAnswer {
  bool fits = false;
  double step_s = 0, tokens_s = 0;  // for all GPUs together; 0 if it does not fit
  uint64_t gpu_bytes = 0;           // per GPU, with activations and buffers
  uint64_t host_bytes = 0;          // per node
  std::string lacks = "";           // missing memory: "GPU 3.20 GiB", "host 1.00 GiB"; "": it fits
};

// make_plan() or, where nothing fits, least_plan(). Returns their errors, except that
// kResourceExhausted is an answer.
Result<PlanAnswer> plan_answer(const ModelProfile& profile, const Machine& machine,
                               const PlanRequest& request);

// PlanAnswer::lacks. Memory of a GPU goes first.
std::string lacks_text(uint64_t gpu_bytes, uint64_t host_bytes);

}  // namespace elixir::planner
