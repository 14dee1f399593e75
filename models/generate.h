#pragma once

// Continuing a text with a model, token by token. Every pass is a forward pass over the whole text
// so far, through the rCache as any evaluation: nothing but the tokens is kept between two.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "models/decoder.h"

namespace elixir {

struct GenerateOptions {
  int64_t length = 0;      // tokens to add
  double temperature = 1;  // logits are divided by it; 0: the likeliest token, always
  int64_t top_k = 0;       // of so many likeliest tokens one is drawn; 0: of all
  uint64_t seed = 1;
  // Brings tokens to where the model computes.
  std::function<at::Tensor(const at::Tensor&)> to_device = {};
  // Called with each token; false ends it early.
  std::function<bool(int64_t token)> on_token = {};
};

// `tokens` and what follows it. The model sees the last tokens that its context holds.
// Without gradients and dropout; the model's mode is as before afterwards, and torch's default
// generators draw nothing. Ranks that share chunks run it alike: as many passes each.
// kBadInput: what the model gives for the next token is no number (of weights that diverged).
// REQUIRES: there is a token, and all are in the vocabulary.
Result<std::vector<int64_t>> generate(Decoder& model, std::vector<int64_t> tokens,
                                      const GenerateOptions& options);

// A token drawn from logits [vocabulary] on the CPU by `generator`.
// REQUIRES: the greatest logit is finite.
int64_t choose_token(const at::Tensor& logits, const GenerateOptions& options,
                     at::Generator& generator);

}  // namespace elixir
