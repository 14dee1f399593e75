#pragma once

// Finds the size of a model for commands that need nothing else of it.

#include <cstdint>
#include <string>
#include <vector>

#include "base/cli.h"
#include "planner/estimate/quantised.h"
#include "planner/estimate/zero_arithmetic.h"
#include "planner/models/model_request.h"

namespace elixir::ctl {

// How the command line names the model: one of --params, --model, --config and --safetensors.
struct ModelSource {
  std::string params = {}, safetensors = {};
  planner::ModelRequest model = {.batch = 0};
};
void add_source(CLI::App& command, ModelSource& source);

// Sets the type of a model by its --config, if the command line does not give --dtype: the type
// that elixir-train takes for the same folder.
void take_stored_type(const CLI::App& command, planner::ModelRequest& model);

// The size of a model, however it was named.
struct SizedModel {
  std::string name = {};
  uint64_t params = 0;
  uint64_t largest_param = 0;                             // 0: not known
  int64_t context = 0;                                    // 0: the model cannot be profiled
  planner::ZeroShape shape = {};                          // of a known model
  std::vector<planner::QuantisedWeights> quantised = {};  // part of `params`
};

// kInvalidArgument: none or several of the four are given, or the name is unknown. kBadInput: a
// file cannot be used.
Result<SizedModel> find_source(const ModelSource& source);

// Names on standard error the fields of a --config that are not used, as elixir-train does. Does
// nothing if `config_path` is "".
void say_unused_fields(const std::string& config_path);

}  // namespace elixir::ctl
