#pragma once

// The model that a command line of elixir-train means, and what follows from it: the values of
// flags that are not given.

#include <string>

#include "base/problems.h"
#include "models/train_options.h"

namespace elixir {

// The peak rate for weights that are trained already (--init): torchtune's for full fine-tuning of
// Llama 3 8B. Rates of training from scratch are 5 to 30 times as high, and would undo the weights.
inline constexpr double kFineTuningLr = 2e-5;

// Flags of which it matters whether they are given.
struct ModelWords {
  std::string name = {};  // --model; "": not given
  bool gives_dtype = false, gives_seq = false, gives_checkpointing = false;
};

// Finds the model and sets options.config, .model, .run.dtype, .adamw.lr, .needs_data and .said.
// Adds what is wrong. Of a model that is not known options.config is empty.
void understand_model(const ModelWords& words, TrainOptions& options, Problems& problems);

// What can be known of the folder of --init before anything is started. kBadInput: it is of another
// model than options.config, asks for what models/ does not compute, or its files cannot be read.
Problems check_weights(const TrainOptions& options);

}  // namespace elixir
