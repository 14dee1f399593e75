#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "planner/models/transformer_config.h"

namespace elixir {

// Expects that the module has the parameters that the planner lists, in its order.
inline void expect_named_shapes(const torch::nn::Module& model,
                                const planner::TransformerConfig& config) {
  const auto expected = planner::transformer_parameters(config);
  const auto parameters = model.named_parameters().items();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(parameters[i].key(), expected[i].name);
    EXPECT_EQ(parameters[i].value().sizes().vec(), expected[i].shape) << expected[i].name;
  }
}

// OPT's keys have a bias that shifts all scores alike: its gradient is 0 except for rounding.
inline void expect_gradients(const torch::nn::Module& model) {
  for (const auto& parameter : model.named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    if (parameter.key().ends_with("k_proj.bias")) continue;
    EXPECT_GT(parameter.value().grad().abs().max().item<double>(), 0) << parameter.key();
  }
}

// Expects that another token at place 10 changes the logits from there on, and none before.
template <typename Forward>
void expect_causal(const at::Tensor& tokens, const Forward& forward) {
  at::Tensor changed = tokens.clone();
  changed.select(1, 10).copy_((tokens.select(1, 10) + 1).remainder(50));
  const at::Tensor difference = (forward(tokens) - forward(changed)).abs().amax({0, 2});
  EXPECT_EQ(difference.narrow(0, 0, 10).max().item<double>(), 0);
  for (int64_t place = 10; place < 16; ++place) {
    EXPECT_GT(difference.select(0, place).item<double>(), 0) << place;
  }
}

}  // namespace elixir
