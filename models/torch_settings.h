#pragma once

#include "models/train_options.h"

namespace elixir {

// How torch is to run a training: deterministic operators, attention's kernel. Before CUDA is:
// cuBLAS reads its variable once.
void set_up_torch(const TrainOptions& options);

}  // namespace elixir
