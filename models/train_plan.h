#pragma once

#include <optional>

#include "client/ranks/launch_environment.h"
#include "client/runtime_options.h"
#include "models/gpt2.h"
#include "models/train_options.h"

namespace elixir {

// How train_gpt2 trains: by --plan FILE, or as the planner chooses (client/train/choose_plan.h);
// nothing: by the other flags. Shows the plan on rank 0 and writes --memory-picture and
// --predicted-trace. Throws elixir::Error, also when one of these two is asked for and there is no
// plan.
std::optional<TrainingPlan> plan_training(Gpt2& model, const TrainOptions& options,
                                          const RuntimeOptions& runtime,
                                          const LaunchEnvironment& environment);

}  // namespace elixir
