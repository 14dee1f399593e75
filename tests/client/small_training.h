#pragma once

// A small model trained for some steps, through elixird and without it.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/device/device.h"
#include "client/elixir.h"

namespace elixir::test {

// Options and their layout are the same for every rank.
struct TrainingPlan : Options, LayoutOptions {
  uint32_t ranks = 1;
  int64_t batch = 4;  // a rank
  int64_t steps = 50;
  std::string model;  // a GPT-2 by its name; empty: one of 28 thousand parameters
  // In its place a stack of kLayers, which a step uses in this order.
  std::function<std::vector<int>(int64_t step)> layers;
  int64_t seq = 16;  // tokens
  double lr = 1e-2;
  bool some_apart = false;  // biases and some layers: half the learning rate, no weight decay
  std::function<bool(const std::string& name)> freezes;  // parameters that are not trained
  bool declares = true;  // that a step accumulates; else the optimizer learns it as they come
  bool empty_backward = false;  // a backward pass before each step whose gradients are dropped
  // Multiplies the losses of a rank's step, beside the loss scale. Empty: 1.
  std::function<double(uint32_t rank, int64_t step)> factor;

  // Through elixird alone. Empty: HostDevice.
  std::function<std::unique_ptr<Device>(uint32_t rank)> make_device;
  // On each rank, once the optimizer is built.
  std::function<void(torch::nn::Module&)> begins;
  // On each rank, before the first step and after each: `steps` are optimizer.steps().
  std::function<void(Optimizer&, uint32_t rank, uint64_t steps)> looks;
};

struct TrainingOutcome {
  std::vector<double> losses;  // mean over ranks
  std::vector<double> grad_norms, loss_scales;
  uint32_t skipped = 0;
  std::map<std::string, at::Tensor> weights;  // in the compute type, copied
  uint64_t weights_xxh64 = 0;                 // the same on all ranks, or 0
  StepStats stats;                            // of the last step
  PlanSummary plan{};
};

// Linear layers of kLayerSide x kLayerSide, without biases: "layer0.weight" and so on.
inline constexpr int64_t kLayerSide = 32;
inline constexpr uint64_t kLayerNumel = kLayerSide * kLayerSide;
inline constexpr int kLayers = 12;

struct Stack : torch::nn::Module {
  explicit Stack(int n = kLayers);  // of the same values each time, in any thread
  // tanh after each; in its own type.
  at::Tensor forward(at::Tensor x, const std::vector<int>& order);
  std::vector<torch::nn::Linear> layers;
};

// 0 to n - 1.
std::vector<int> in_order(int n = kLayers);

// Elements of the longest parameter: the length of the shortest chunks without long parameters.
uint64_t largest_parameter_numel(const TrainingPlan& plan = {});

inline constexpr double kWeightDecay = 0.05;

// Runs `rank` in a thread for each rank of a job of its own, on one node of elixird's, and throws
// what the first of them threw.
void run_ranks(uint32_t ranks, const std::function<void(const LaunchEnvironment&)>& rank);

// Every rank is a thread of this process with a model and an optimizer of its own.
TrainingOutcome train_through_elixird(const TrainingPlan& plan);

// LibTorch's gradients of each rank's rows, one rank after the other, then the scalar reference
// Adam over the parameters. Of the plan's layout it knows the exchange alone, which rounds sums
// over ranks to the compute type where it is the collective one.
TrainingOutcome train_with_scalar_reference(const TrainingPlan& plan);

// All ranks of both agree, and so do the two.
inline void expect_equal_weights(const TrainingOutcome& a, const TrainingOutcome& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, weight] : a.weights) {
    EXPECT_TRUE(at::equal(weight, b.weights.at(name))) << name;
  }
  EXPECT_EQ(a.weights_xxh64, b.weights_xxh64);
  EXPECT_NE(a.weights_xxh64, 0u);
}

inline void expect_equal_bits(const TrainingOutcome& a, const TrainingOutcome& b) {
  expect_equal_weights(a, b);
  EXPECT_EQ(a.losses, b.losses);
}

}  // namespace elixir::test
