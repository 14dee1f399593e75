#pragma once

// A model of which a command needs the size alone.

#include <cstdint>
#include <string>
#include <vector>

#include "base/cli.h"
#include "planner/estimate/quantised.h"
#include "planner/models/model_request.h"

namespace elixir::ctl {

// As it is named on a command line: one of --params, --model, --config and --safetensors.
struct ModelSource {
  std::string params = {}, safetensors = {};
  planner::ModelRequest model = {.batch = 0};
};
void add_source(CLI::App& command, ModelSource& source);

// Sets the type of a model by its --config, if the command line does not give --dtype: the type
// that elixir-train takes for the same folder.
void take_stored_type(const CLI::App& command, planner::ModelRequest& model);

// Whatever it was named by.
struct SizedModel {
  std::string name = {};
  uint64_t params = 0;
  uint64_t largest_param = 0;                             // 0: not known
  int64_t context = 0;                                    // 0: not a model that can be profiled
  std::vector<planner::QuantisedWeights> quantised = {};  // part of `params`
};

// kInvalidArgument: none of the four or several, or none that there is; kBadInput: a file.
Result<SizedModel> find_source(const ModelSource& source);

// Says on standard error which fields of a --config are not used, as elixir-train does. "": no
// file.
void say_unused_fields(const std::string& config_path);

}  // namespace elixir::ctl
