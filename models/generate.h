#pragma once

// Continues a text with a model, token by token. Each token takes a forward pass over the whole
// text so far, through the rCache like any evaluation. Only the tokens are kept between two passes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "models/decoder.h"

namespace elixir {

struct GenerateOptions {
  int64_t length = 0;      // tokens to add
  double temperature = 1;  // logits are divided by it; 0: always the likeliest token
  int64_t top_k = 0;       // draws among this many likeliest tokens; 0: among all
  uint64_t seed = 1;
  // Copies tokens to the model's device.
  std::function<at::Tensor(const at::Tensor&)> to_device = {};
  // Called with each token; false ends it early.
  std::function<bool(int64_t token)> on_token = {};
};

// Returns `tokens` and their continuation. The model sees the last tokens that fit its context. It
// runs without gradients and dropout. Afterwards the model has its old mode, and torch's default
// generators have drawn nothing. Ranks that share chunks all call it and make the same number of
// passes. Error: kBadInput if the model's logits are not numbers, because its weights diverged.
// REQUIRES: `tokens` is not empty, and all are in the vocabulary.
Result<std::vector<int64_t>> generate(Decoder& model, std::vector<int64_t> tokens,
                                      const GenerateOptions& options);

// A token drawn from logits [vocabulary] on the CPU by `generator`.
// REQUIRES: the greatest logit is finite.
int64_t choose_token(const at::Tensor& logits, const GenerateOptions& options,
                     at::Generator& generator);

}  // namespace elixir
