#pragma once

// A table: what each change of a machine or of a step would bring.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/report/plan_answer.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

// A plan to make: with another machine, or another step.
struct WhatIfCase {
  std::string change;
  Machine machine;
  const ModelProfile* profile = nullptr;
};

// Changes of the machine, each alone: memory, links, the CPU, GPUs, collectives. The first is
// "as it is". Those that change nothing are left out, as collectives are with one GPU.
std::vector<WhatIfCase> machine_changes(const ModelProfile& profile, const Machine& machine);

struct WhatIfRow : PlanAnswer {
  std::string change;
};

// A plan for each case. Returns make_plan()'s errors, except that kResourceExhausted is a row.
Result<std::vector<WhatIfRow>> what_if(std::span<const WhatIfCase> cases,
                                       const PlanRequest& request);

// {"rows": [{"change", "step_s", "tokens_s", "fits", "lacks"}]}; null as in comparison.h.
std::string to_json(const std::vector<WhatIfRow>& rows);
std::string to_text(const std::vector<WhatIfRow>& rows);  // a table for people

}  // namespace elixir::planner
