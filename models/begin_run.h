#pragma once

// How a run of elixir-train gets its weights.

#include <memory>

#include "client/elixir.h"
#include "models/decoder.h"
#include "models/run_start.h"
#include "models/train_options.h"

namespace elixir {

// A model, and the optimizer that has its weights.
struct Begun {
  std::shared_ptr<Decoder> model;
  AdamW optimizer;
};

// Finds out where the run begins. Rank 0 prints it to standard output. Puts the options that a
// resumed run must keep into `options`. Throws elixir::Error.
RunStart find_run_start(TrainOptions& options);

// Builds the model and its optimizer with the weights of `start`. With --resume latest, if the
// chosen checkpoint turns out to be damaged while it is loaded, the run continues from the next
// older one. `start` then names that one. Throws elixir::Error.
Begun begin_run(TrainOptions& options, RunStart& start);

}  // namespace elixir
