#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "models/decoder.h"
#include "models/token_data.h"

namespace elixir {

struct ValidationPass {
  int64_t sequences = 64;  // at most; evenly spread over the data
  int64_t batch = 8;       // sequences of one forward pass
  // Copies inputs to the model's device; empty: they stay on the CPU.
  std::function<at::Tensor(const at::Tensor&)> to_device = {};
};

// The mean loss of `model` per token that is not masked, without dropout and gradients. It depends
// only on the weights, the data and the number of sequences: the batch does not change the tokens.
// The model keeps its mode. Error: kBadInput if a token is outside the vocabulary
// or all labels are masked.
Result<double> validation_loss(Decoder& model, const TokenData& data, const ValidationPass& pass);

}  // namespace elixir
