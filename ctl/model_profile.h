#pragma once

#include <string>

#include "base/status.h"
#include "planner/models/model_request.h"
#include "planner/profile.h"

namespace elixir::ctl {

// One step of a known model on one GPU.
struct ModelProfileRequest : planner::ModelRequest {
  // A POSIX extended expression. Parameters with matching names are frozen. "": none.
  std::string freeze = "";
};

// Runs elixir-profile, which is installed beside the running program. It links LibTorch, so that
// this program does not have to. It computes nothing and touches no memory of the model's size.
// Blocks until it ends: well under a second.
//
// Errors: kUnavailable, with the remedy, if elixir-profile is missing; otherwise elixir-profile's
// own code and message.
Result<planner::ModelProfile> profile_of_model(const ModelProfileRequest& request);

// profile_of_model() as the JSON text that elixir-profile prints: planner/profile_json.h.
Result<std::string> profile_json_of_model(const ModelProfileRequest& request);

}  // namespace elixir::ctl
