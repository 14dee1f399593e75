#pragma once

#include "base/problems.h"
#include "models/train_options.h"

namespace elixir {

// kInvalidArgument for each file and folder that the run is to write and cannot. The number of
// nodes counts once options.run.environment is read. Another rank may make a folder at the same
// time.
Problems check_written(const TrainOptions& options);

}  // namespace elixir
