#pragma once

// Elixir's exchanges beside the strategies that other systems have, on the same machine.

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/report/plan_answer.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

struct ComparedRow : PlanAnswer {
  std::string strategy;  // "elixir", or a strategy_name()
  std::string path;      // the exchange's name; "host" with one GPU, which has none
};

// Elixir with each exchange, then ddp to zero3_offload. make_plan() makes Elixir's rows. The others
// have the bytes of estimate/estimate.h, and their steps are simulated. Strategies on GPUs have
// every state there, collectives, and this runtime's overlap. ZeRO's offload hides nothing
// (Policy::kZero2Offload). REQUIRES: request.policy is kElixir. Returns make_plan()'s errors,
// except that kResourceExhausted is a row.
Result<std::vector<ComparedRow>> compare_strategies(const ModelProfile& profile,
                                                    const Machine& machine,
                                                    const PlanRequest& request);

// {"rows": [{"strategy", "exchange", "fits", "step_s", "tokens_s", "gpu_bytes", "host_bytes",
// "lacks"}]}.
// step_s and tokens_s are null if the row does not fit. Otherwise `lacks` is null.
std::string to_json(const std::vector<ComparedRow>& rows);
std::string to_text(const std::vector<ComparedRow>& rows);  // a table for people

}  // namespace elixir::planner
