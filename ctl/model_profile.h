#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "planner/models/transformer_config.h"
#include "planner/profile.h"

namespace elixir::ctl {

// One step of a known model on one GPU.
struct ModelProfileRequest {
  std::string model;        // of planner::transformer_names(); empty when config_path is given
  std::string config_path;  // a Hugging Face config.json; empty when model is given
  uint64_t batch = 8;       // sequences
  uint64_t seq = 0;         // tokens of each; 0: the model's longest, at most planner::kDefaultSeq
  uint64_t layers = 0;      // 0: the model's
  std::string freeze = "";  // parameters whose names this POSIX extended expression finds; "": none
  std::string dtype = "bf16";  // of parameters and activations: bf16, fp16 or fp32
  bool checkpoint_activations = true;
};

// Sizes of the model that is named. kBadInput with the path, kInvalidArgument: an unknown name.
Result<planner::TransformerConfig> config_of_model(const ModelProfileRequest& request);

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
