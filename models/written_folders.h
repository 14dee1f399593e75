#pragma once

#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

// kInvalidArgument if --checkpoints or --export cannot be written. Over how many nodes the run goes
// counts once options.run.environment is read.
Status check_written(const TrainOptions& options);

}  // namespace elixir
