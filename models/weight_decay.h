#pragma once

// Weight decay does not apply to parameters of less than two dimensions. In the models here these
// are the norms and the biases. transformers' Trainer and nanoGPT leave out the same parameters.

#include <torch/nn/module.h>

#include <vector>

#include "client/elixir.h"
#include "models/train_options.h"

namespace elixir {

inline bool is_decayed(const at::Tensor& parameter) { return parameter.dim() >= 2; }

// Groups for the optimizer of `model`: one group with the parameters without decay. Empty with
// options.decay_all, or if there are no such parameters.
std::vector<ParamGroup> decay_groups(const torch::nn::Module& model, const TrainOptions& options);

}  // namespace elixir
