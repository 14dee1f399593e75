#pragma once

#include <memory>

#include "client/ranks/launch_environment.h"
#include "models/decoder.h"
#include "models/train_options.h"
#include "planner/plan/plan.h"

namespace elixir {

// Host memory that a rank's process needs for its activations, logits and gradients: 0 on a GPU.
uint64_t program_bytes(Decoder& model, const TrainOptions& options);

// How elixir-train trains: by --plan FILE, or as the planner chooses (client/train/choose_plan.h);
// null: by the other flags. Shows the plan on rank 0 and writes --memory-picture and
// --predicted-trace. Throws elixir::Error, also when one of these two is asked for and there is no
// plan, and for a plan that differs from the run in checkpointing.
std::shared_ptr<const planner::Plan> plan_training(Decoder& model, const TrainOptions& options,
                                                   const LaunchEnvironment& environment);

}  // namespace elixir
