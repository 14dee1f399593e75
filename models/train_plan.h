#pragma once

#include <memory>

#include "client/ranks/launch_environment.h"
#include "models/decoder.h"
#include "models/train_options.h"
#include "planner/plan/plan.h"

namespace elixir {

// Bytes of host memory that a rank's process needs for activations, logits and gradients. 0: on a
// GPU, or unknown.
uint64_t program_bytes(Decoder& model, const TrainOptions& options);

// The plan for elixir-train: that of --plan FILE, or the planner's choice
// (client/train/choose_plan.h). Null: there is neither, and the other flags decide. On rank 0,
// prints the planner's choice and writes --memory-picture and --predicted-trace. Throws
// elixir::Error, also if one of these two is given but the planner makes no choice.
std::shared_ptr<const planner::Plan> plan_training(Decoder& model, const TrainOptions& options,
                                                   const LaunchEnvironment& environment);

}  // namespace elixir
