#pragma once

// A small GPT-2 trained for some steps, through elixird and without it.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/device/device.h"
#include "client/elixir.h"
#include "optim_cpu/adam.h"

namespace elixir::test {

struct TrainingPlan {
  uint32_t ranks = 1;
  int64_t batch = 4;  // a rank
  int64_t steps = 50;
  ComputeType dtype = ComputeType::kFp32;
  uint64_t chunk_numel = 0;
  uint32_t rcache_blocks = 0;
  uint32_t workers = 0;
  double gpu_state_share = 0;
  std::optional<shm::Exchange> exchange = shm::Exchange::kHost;
  std::string device = "cpu";
  std::string model;  // a GPT-2 by its name; empty: one of 28 thousand parameters
  int64_t seq = 16;   // tokens
  // Empty: HostDevice.
  std::function<std::unique_ptr<Device>(uint32_t rank)> make_device;
  bool empty_backward = false;  // a backward pass before each step whose gradients are dropped
  int64_t backwards = 1;        // of the same rows, before each step
  double dropout = 0;
  bool checkpoint_activations = false;
  double lr = 1e-2;

  UpdateMode update = UpdateMode::kDeferred;
  std::optional<uint32_t> spare_slots, swing_stride;
  std::string freezes;  // parameters whose names begin so are not trained; "": all are
  std::optional<double> clip_norm;
  uint32_t accumulate = 1;  // backward passes a step, of rows of their own
  bool declares = true;     // them; else the optimizer learns of them as they come
  double loss_scale = 1;    // constant
  std::optional<DynamicLossScale> dynamic_loss_scale;
  std::optional<HostLink> link;
  Strategy strategy = Strategy::kNone;
  bool offload = true;
  bool biases_apart = false;  // in a group with half the learning rate and no weight decay
  std::function<bool(uint32_t rank, int64_t step)> overflows;  // whose loss is infinite
  std::function<bool(int64_t step)> leaves_out;                // steps that are not made
  std::vector<double> scale_of_step;                           // the reference's; empty: loss_scale

  // Through elixird alone. A folder to begin with, and a run that goes on from there; "": none.
  std::string load_from;
  bool load_states = true;
  // On each rank, before the first step and after each: `steps` are optimizer.steps().
  std::function<void(Optimizer&, uint32_t rank, uint64_t steps)> looks;
};

struct TrainingOutcome {
  std::vector<double> losses;  // mean over ranks
  std::vector<double> grad_norms, loss_scales;
  uint32_t skipped = 0;
  uint64_t most_h2d_bytes = 0, least_h2d_bytes = UINT64_MAX;  // of the steps from the third on
  std::map<std::string, at::Tensor> weights;                  // in the compute type, copied
  uint64_t weights_xxh64 = 0;                                 // the same on all ranks, or 0
  StepStats stats;                                            // of the last step
  PlanSummary plan{};
};

// The longest parameter of the model, and its chunks' shortest legal length.
uint64_t largest_parameter_numel();
uint64_t model_numel();

inline constexpr double kWeightDecay = 0.05;

// Runs `rank` in a thread for each rank of a job of its own, on one node of elixird's, and throws
// what the first of them threw.
void run_ranks(uint32_t ranks, const std::function<void(const LaunchEnvironment&)>& rank);

// Every rank is a thread of this process with a model and an optimizer of its own.
TrainingOutcome train_through_elixird(const TrainingPlan& plan);

// LibTorch's gradients of each rank's rows, one rank after the other, then the scalar reference
// Adam over the parameters.
TrainingOutcome train_with_scalar_reference(const TrainingPlan& plan);

// LibTorch alone, torch::optim::AdamW. One rank, FP32.
TrainingOutcome train_with_torch(const TrainingPlan& plan);

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
