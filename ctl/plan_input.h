#pragma once

// What elixirctl plan is asked: a model, a machine and what is not to be chosen.

#include <cstdint>
#include <string>

#include "base/cli.h"
#include "base/status.h"
#include "ctl/model_profile.h"
#include "planner/search/make_plan.h"

namespace elixir::ctl {

struct PlanArguments {
  ModelProfileRequest model;
  std::string profile, machine;  // files
  std::string gpu_memory, host_memory;
  int64_t gpus = 0, gpus_per_node = 0;  // 0: as the machine file says
  double g2g_gb_s = 0, internode_gb_s = 0;
  std::string policy = "elixir", exchange = "auto", update = "deferred";
  int64_t accumulate = 1;
  int64_t chunk_numel = 0, rcache_blocks = 0;
  double gpu_home_share = -1;
  bool swing = false;
  bool tokens_given = false;  // --batch or --seq
  bool dtype_given = false;
};

void add_model_flags(CLI::App* plan, PlanArguments* arguments);
void add_machine_flags(CLI::App* plan, PlanArguments* arguments);
void add_choice_flags(CLI::App* plan, PlanArguments* arguments);

// Each reads a file or runs elixir-profile. Errors: kInvalidArgument for flags that contradict one
// another, kBadInput with the file's name, profile_of_model()'s.
Result<planner::ModelProfile> profile_of(const PlanArguments& arguments);
Result<planner::Machine> machine_of(const PlanArguments& arguments);
planner::PlanRequest request_of(const PlanArguments& arguments);

}  // namespace elixir::ctl
