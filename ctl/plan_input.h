#pragma once

// The input of elixirctl plan: a model, a machine and the choices that the user has fixed.

#include <cstdint>
#include <string>

#include "base/cli.h"
#include "base/status.h"
#include "ctl/model_profile.h"
#include "planner/machine_json.h"
#include "planner/search/make_plan.h"

namespace elixir::ctl {

struct PlanArguments {
  ModelProfileRequest model;
  std::string profile, machine;                 // files
  std::string adapters;                         // RANK or RANK,REGEX; "": none
  std::string gpu;                              // a known one's name; "": the machine's own
  planner::MachineOverrides overrides;          // replace values of the machine file
  planner::PlanRequest request;                 // without its tokens
  std::optional<Activations> activations = {};  // empty: not given
  bool tokens_given = false;                    // --batch or --seq
  bool dtype_given = false;
};

void add_model_flags(CLI::App* plan, PlanArguments* arguments);
void add_machine_flags(CLI::App* plan, PlanArguments* arguments);
void add_choice_flags(CLI::App* plan, PlanArguments* arguments);

// Checks that exactly one model is named, and that it exists. Reads a config.json.
Status check_source(const PlanArguments& arguments);

// REQUIRES: check_source(). Each reads a file or runs elixir-profile. Errors: kInvalidArgument for
// flags that contradict one another, kBadInput with the file's name, and those of
// profile_of_model().
Result<planner::ModelProfile> profile_of(const PlanArguments& arguments);
// The same for this model, in place of the arguments' own.
Result<planner::ModelProfile> profile_of(const PlanArguments& arguments,
                                         const ModelProfileRequest& model);
Result<planner::Machine> machine_of(const PlanArguments& arguments);
planner::PlanRequest request_of(const PlanArguments& arguments);

}  // namespace elixir::ctl
