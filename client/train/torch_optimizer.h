#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "client/step/step_control.h"

namespace elixir {

class Engine;

// An engine as torch's Optimizer. Its groups have torch's own options, AdamWOptions or AdamOptions.
// A hyperparameter is what was set last, on either side: the engine's changes are pushed into the
// options at once, and the options' are pulled before anything asks for them.
//
// It may outlive its engine: step() throws kInvalidArgument after detach().
class TorchOptimizer final : public torch::optim::Optimizer {
 public:
  explicit TorchOptimizer(Engine& engine);

  at::Tensor step(LossClosure closure = nullptr) override;
  // The states lie in elixird. Both throw kInvalidArgument.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // What was set in torch's options since the last pull() or push() becomes the engine's. Throws
  // kInvalidArgument for what is out of range or comes too late for the step (immediate updates),
  // for amsgrad, and where the groups' parameters are not those that Elixir put there.
  void pull();
  // The engine's hyperparameters become torch's. REQUIRES: a pull() before they changed.
  void push();
  // The engine has a group more than at the last call. REQUIRES: as push().
  void add_group();
  // The engine ends, with the model released.
  void detach() { engine_ = nullptr; }

 private:
  void check_groups() const;

  Engine* engine_;  // null: it has released its model
  // By group, what both sides had when they were last the same.
  std::vector<optim::AdamOptions> synced_;
  std::vector<std::vector<const c10::TensorImpl*>> parameters_;
};

// What is said after release().
[[noreturn]] void throw_released();

}  // namespace elixir
