#pragma once

// Elixir's exchanges beside the strategies that other systems have, on the same machine.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

struct ComparedRow {
  std::string strategy;  // "elixir", or of strategy_name()
  std::string path;      // the exchange's name; with one GPU, which has none, "host"
  bool fits = false;
  double step_s = 0, tokens_s = 0;  // of all GPUs together; 0 where it does not fit
  uint64_t gpu_bytes = 0;           // of one GPU, activations and buffers among them
  uint64_t host_bytes = 0;          // of a node
  std::string lacks = "";           // "GPU 3.20 GiB", "host 1.00 GiB"; "" where it fits
};

// elixir with each exchange, then ddp to zero3_offload. Elixir's rows are make_plan()'s. Of the
// others, bytes are estimate/estimate.h's and steps are simulated: those on GPUs with every state
// on them, collectives and this runtime's overlap; ZeRO's offload with nothing hidden
// (Policy::kZero2Offload). REQUIRES: request.policy is kElixir. Errors as make_plan()'s but for
// kResourceExhausted, which is a row.
Result<std::vector<ComparedRow>> compare_strategies(const ModelProfile& profile,
                                                    const Machine& machine,
                                                    const PlanRequest& request);

// {"rows": [{"strategy", "exchange", "fits", "step_s", "tokens_s", "gpu_bytes", "host_bytes",
// "lacks"}]}; step_s and tokens_s are null where it does not fit, lacks where it does.
std::string to_json(const std::vector<ComparedRow>& rows);
std::string to_text(const std::vector<ComparedRow>& rows);  // a table for people

}  // namespace elixir::planner
