#pragma once

// What a run that has diverged says: what its weights hold, and how to begin again.

#include <torch/nn/module.h>

#include <string>

#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

struct WeightsLook {
  // The first parameter, in the module's order, with values that are not finite, and how many of
  // how many: "'h.0.attn.weight', 3 of 4096 values". "": all are finite.
  std::string first_not_finite;
  double largest = 0;  // the greatest magnitude, where all are finite
};

// It gathers every chunk once and makes no copy, so it costs about what the reads of one forward
// pass cost. All ranks call it, and come to the same.
WeightsLook look_at_weights(const torch::nn::Module& model);

// The error with which the run ends. `cause`: RunHealth::text(), or what stands in its place.
// `good`: the checkpoint to continue from; "": there is none.
Status diverged_error(const std::string& cause, const WeightsLook& weights, const std::string& good,
                      const TrainOptions& options);

}  // namespace elixir
