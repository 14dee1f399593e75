#pragma once

#include <cstdint>
#include <string>

#include "base/compute_type.h"
#include "base/status.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// The model that a command asks for, and how a step of it runs.
struct ModelRequest {
  std::string model = {};        // one of transformer_names(); empty if config_path is given
  std::string config_path = {};  // a Hugging Face config.json; empty if model is given
  int64_t batch = 8;             // sequences
  int64_t seq = 0;               // tokens per sequence; 0: the longest, at most kDefaultSeq
  int64_t layers = 0;            // 0: the model's
  ComputeType dtype = ComputeType::kBf16;  // parameters and activations
  bool checkpoint_activations = true;      // each layer keeps only its input for backward
};

// Sizes of the requested model, with the requested number of layers. Returns kInvalidArgument for
// an unknown name, or if both or none of model and config_path are given. Returns kBadInput, with
// the path, for a file that cannot be read or is no config.json of a known type.
Result<TransformerConfig> config_of(const ModelRequest& request);

}  // namespace elixir::planner
