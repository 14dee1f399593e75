#pragma once

// Which parameters weight decay does not apply to: those of less than two dimensions. In the models
// here these are the norms and the biases, and so the parameters that transformers' Trainer and
// nanoGPT leave out, too.

#include <torch/nn/module.h>

#include <vector>

#include "client/elixir.h"
#include "models/train_options.h"

namespace elixir {

inline bool is_decayed(const at::Tensor& parameter) { return parameter.dim() >= 2; }

// For the optimizer of `model`: one group of the parameters without decay; with options.decay_all,
// or if there are none, no group.
std::vector<ParamGroup> decay_groups(const torch::nn::Module& model, const TrainOptions& options);

}  // namespace elixir
