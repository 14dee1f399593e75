#pragma once

// The error of a diverged run: the state of its weights, and how to start again.

#include <torch/nn/module.h>

#include <string>

#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

struct WeightsLook {
  // The first parameter, in the module's order, with values that are not finite, and their number:
  // "'h.0.attn.weight', 3 of 4096 values". "": all are finite.
  std::string first_not_finite;
  double largest = 0;  // the greatest magnitude, if all are finite
};

// Gathers every chunk once and makes no copy, so it costs about as much as the gathers of one
// forward pass. REQUIRES: all ranks call it. The result is equal on all of them.
WeightsLook look_at_weights(const torch::nn::Module& model);

// The error with which the run ends. `cause`: RunHealth::text() or another cause. `good`: the
// checkpoint to continue from; "": none.
Status diverged_error(const std::string& cause, const WeightsLook& weights, const std::string& good,
                      const TrainOptions& options);

}  // namespace elixir
