#pragma once

#include <cstdint>
#include <string>

#include "base/compute_type.h"
#include "base/status.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// What a command asks of a model: which one, and how a step of it runs.
struct ModelRequest {
  std::string model = {};        // of transformer_names(); empty when config_path is given
  std::string config_path = {};  // a Hugging Face config.json; empty when model is given
  int64_t batch = 8;             // sequences
  int64_t seq = 0;               // tokens of each; 0: the longest, at most kDefaultSeq
  int64_t layers = 0;            // 0: the model's
  ComputeType dtype = ComputeType::kBf16;  // of parameters and activations
  bool checkpoint_activations = true;      // each block keeps its input alone for backward
};

// Sizes of the model that is asked for, with the layers asked for. kInvalidArgument: both or none
// of model and config_path, an unknown name; kBadInput, with the path: a file that cannot be read,
// or is no config.json of a known type.
Result<TransformerConfig> config_of(const ModelRequest& request);

}  // namespace elixir::planner
