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
#include "planner/models/transformer_config.h"

namespace elixir::test {

// Options and their layout are the same for every rank.
struct TrainingPlan : Options, LayoutOptions {
  uint32_t ranks = 1;
  int64_t batch = 4;  // per rank
  int64_t steps = 50;
  std::string model;  // a GPT-2's name; empty: one with 28 thousand parameters
  planner::Family family = planner::Family::kGpt2;  // of the one without a name
  bool checkpointed = false;  // each block, or layer of a stack, is a region: Options::activations
  // If set, the model is a stack of kLayers layers instead, and a step uses them in this order.
  std::function<std::vector<int>(int64_t step)> layers;
  int64_t seq = 16;  // tokens
  double lr = 1e-2;
  bool some_apart = false;  // biases and some layers: half the learning rate, no weight decay
  std::function<bool(const std::string& name)> freezes;  // parameters that are not trained
  // The optimizer knows in advance that a step accumulates. Else it learns this from the backward
  // passes.
  bool declares = true;
  bool empty_backward = false;  // before each step, a backward pass whose gradients are dropped
  // Multiplies the losses of a rank's step, in addition to the loss scale. Empty: 1.
  std::function<double(uint32_t rank, int64_t step)> factor;

  // Used only through elixird. Empty: HostDevice.
  std::function<std::unique_ptr<Device>(uint32_t rank)> make_device;
  // Called on each rank once the optimizer is built.
  std::function<void(torch::nn::Module&)> begins;
  // Called on each rank before the first step and after each step. `steps` is optimizer.steps().
  std::function<void(Optimizer&, uint32_t rank, uint64_t steps)> looks;
};

struct TrainingOutcome {
  std::vector<double> losses;  // mean over ranks
  std::vector<double> grad_norms, loss_scales;
  uint32_t skipped = 0;
  std::map<std::string, at::Tensor> weights;  // in the compute type, copied
  uint64_t weights_xxh64 = 0;                 // 0: the ranks differ
  StepStats stats;                            // the last step's
  PlanSummary plan{};
};

// Linear layers of kLayerSide x kLayerSide, without biases: "layer0.weight" and so on.
inline constexpr int64_t kLayerSide = 32;
inline constexpr uint64_t kLayerNumel = kLayerSide * kLayerSide;
inline constexpr int kLayers = 12;

struct Stack : torch::nn::Module {
  explicit Stack(int n = kLayers);  // makes the same values each time, in any thread
  // Applies tanh after each layer, in the stack's own type.
  at::Tensor forward(at::Tensor x, const std::vector<int>& order, bool checkpointed = false);
  std::vector<torch::nn::Linear> layers;
};

// 0 to n - 1.
std::vector<int> in_order(int n = kLayers);

// Elements of the longest parameter. This is the shortest chunk length without long parameters.
uint64_t largest_parameter_numel(const TrainingPlan& plan = {});

inline constexpr double kWeightDecay = 0.05;

// Runs `rank` in one thread for each rank of a new job, on one node. If ranks throw, throws one of
// the exceptions, if possible one that is not about a lost peer.
void run_ranks(uint32_t ranks, const std::function<void(const LaunchEnvironment&)>& rank);

// Every rank is a thread of this process with its own model and optimizer.
TrainingOutcome train_through_elixird(const TrainingPlan& plan);

// Takes LibTorch's gradients of each rank's rows, one rank after the other, and then applies the
// scalar reference Adam to the parameters. It ignores the plan's layout except the exchange: the
// collective one rounds sums over ranks to the compute type.
TrainingOutcome train_with_scalar_reference(const TrainingPlan& plan);

// All ranks of each training agree, and both trainings agree.
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
