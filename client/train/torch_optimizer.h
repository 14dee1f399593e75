#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "client/step/step_control.h"

namespace elixir {

class Engine;

// An engine as torch's Optimizer. Its groups have torch's own options, AdamWOptions or AdamOptions.
// Each hyperparameter has the value that was set last, on either side. The engine's changes are
// pushed into the options at once. Changes of the options are pulled before anything needs them.
//
// It may outlive its engine. step() throws kInvalidArgument after detach().
class TorchOptimizer final : public torch::optim::Optimizer {
 public:
  explicit TorchOptimizer(Engine& engine);

  at::Tensor step(LossClosure closure = nullptr) override;
  // The states lie in elixird. Both throw kInvalidArgument.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // Gives the engine the values that were set in torch's options since the last pull() or push().
  // Throws kInvalidArgument for a value that is out of range or comes too late for the step
  // (immediate updates), and for amsgrad. It also throws if the groups' parameters are not those
  // that Elixir put there.
  void pull();
  // Gives torch's options the engine's hyperparameters. REQUIRES: a pull() before these changed.
  void push();
  // Call it when the engine has one group more. REQUIRES: as for push().
  void add_group();
  // Call it when the engine ends and the model is released.
  void detach() { engine_ = nullptr; }

 private:
  void check_groups() const;

  Engine* engine_;  // null: it has released its model
  // By group, the values when both sides were last equal.
  std::vector<optim::AdamOptions> synced_;
  std::vector<std::vector<const c10::TensorImpl*>> parameters_;
};

// Throws the error of calls after release().
[[noreturn]] void throw_released();

}  // namespace elixir
