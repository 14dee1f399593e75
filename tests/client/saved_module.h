#pragma once

// The module that tests of save() and load() train.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <string>
#include <vector>

#include "client/elixir.h"
#include "tests/client/saved_states.h"
#include "tests/client/torch_ways.h"
#include "tests/support/thrown.h"

namespace elixir::test {

// It has a linear layer, BatchNorm with its buffers, a frozen layer, and a parameter that is left
// out.
struct Mixed : torch::nn::Module {
  explicit Mixed(int64_t width = 48, const std::string& last = "head") {
    at::manual_seed(7);
    first = register_module("first", torch::nn::Linear(16, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    frozen = register_module("frozen", torch::nn::Linear(width, width));
    head = register_module(last, torch::nn::Linear(width, 1));
    scale = register_parameter("scale", at::ones({3}) * 1.5);
    table = register_buffer("table", at::arange(5, at::kInt));
    for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    train();
  }
  at::Tensor loss(int64_t number) {
    const at::Tensor x = wave({8, 16}, number);
    const at::Tensor y = head(at::relu(frozen(norm(first(x.to(first->weight.scalar_type()))))));
    return (y.to(at::kFloat) * scale.sum() - x.sum(1, /*keepdim=*/true)).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, frozen{nullptr}, head{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor scale, table;
};

inline Options runtime(const std::string& load_from = "") {
  Options options;
  options.environment = LaunchEnvironment{};
  static std::atomic<int> jobs{0};
  options.environment->job = "saves-" + std::to_string(jobs++);
  options.leave_out = [](const std::string& name, const at::Tensor&) { return name == "scale"; };
  options.load_from = load_from;
  return options;
}

inline void train(Mixed& model, Optimizer& optimizer, int64_t first, int64_t count) {
  for (int64_t i = first; i < first + count; ++i) {
    optimizer.zero_grad();
    optimizer.scale(model.loss(i)).backward();
    optimizer.step();
  }
}

// A Mixed that trains through elixird.
struct MixedRun {
  explicit MixedRun(int64_t steps = 0, const Options& options = runtime())
      : optimizer(model, {.lr = 1e-2}, options) {
    train(0, steps);
  }
  void train(int64_t first, int64_t count) { test::train(model, optimizer, first, count); }
  uint64_t weights() { return optimizer.weights_xxh64(); }
  uint64_t states() { return xxh64_of(optimizer.state_dict()); }

  Mixed model;
  AdamW optimizer;
};

inline std::vector<ParamGroup> groups_of(Mixed& model) {
  return {{{model.head->weight, model.head->bias}, 3e-3, 0.0}};
}

template <typename Call>
std::string refusal_of(const Call& call, Code code) {
  return elixir::refusal_of(thrown(call), code);
}

}  // namespace elixir::test
