#pragma once

#include "base/problems.h"
#include "models/train_options.h"

namespace elixir {

// Gives kInvalidArgument for each file and folder that the run must write but cannot. Considers the
// number of nodes once options.run.environment is set. Another rank may create a folder at the same
// time.
Problems check_written(const TrainOptions& options);

}  // namespace elixir
