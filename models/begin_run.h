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

// Where the run begins. Rank 0 says it on standard output. What the run must keep of the one that
// it continues is put into `options`. Throws elixir::Error.
RunStart find_run_start(TrainOptions& options);

// The model and its optimizer, with the weights that `start` says. With --resume latest, if damage
// shows while the chosen checkpoint is loaded, the run continues from the next older one, and
// `start` says so. Throws elixir::Error.
Begun begin_run(TrainOptions& options, RunStart& start);

}  // namespace elixir
