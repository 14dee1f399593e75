#pragma once

// Finds the model that the command line of elixir-train names, and derives values of missing flags
// from it.

#include <optional>
#include <string>

#include "base/problems.h"
#include "models/train_options.h"
#include "planner/choices.h"

namespace elixir {

// The peak learning rate for weights that are already trained (--init). It is torchtune's for full
// fine-tuning of Llama 3 8B. Rates for training from scratch are 5 to 30 times as high, and would
// destroy the weights.
inline constexpr double kFineTuningLr = 2e-5;

// Tells which flags the command line gives.
struct ModelWords {
  std::string name = {};  // --model; "": not given
  bool gives_dtype = false, gives_seq = false;
  std::optional<Activations> activations = {};  // empty: not given
};

// Finds the model and sets options.config, .model, .model_refused, .run.dtype, .run.activations,
// .adamw.lr, .needs_data, .bytes_are_tokens and .said. Adds errors to `problems`. For an unknown
// model options.config is empty.
void understand_model(const ModelWords& words, TrainOptions& options, Problems& problems);

// Checks the folder of --init before anything is started. kBadInput: its model is not
// options.config, models/ does not compute it, or its files cannot be read.
Problems check_weights(const TrainOptions& options);

}  // namespace elixir
