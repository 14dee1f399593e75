#pragma once

#include <string>

#include "base/status.h"
#include "planner/models/model_request.h"
#include "planner/profile.h"

namespace elixir::ctl {

// One step of a known model on one GPU.
struct ModelProfileRequest : planner::ModelRequest {
  std::string freeze = "";  // parameters whose names this POSIX extended expression finds; "": none
};

// Runs elixir-profile, which stands beside the running program and holds LibTorch, so that this one
// need not. Nothing is computed and no memory of the model's size is touched. Blocks until it ends:
// well under a second.
//
// kUnavailable, with the remedy, when elixir-profile is not there; elixir-profile's own code and
// message otherwise.
Result<planner::ModelProfile> profile_of_model(const ModelProfileRequest& request);

// The same, as elixir-profile prints it: planner/profile_json.h.
Result<std::string> profile_json_of_model(const ModelProfileRequest& request);

}  // namespace elixir::ctl
