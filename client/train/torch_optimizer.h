#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace elixir {

class Engine;

// An engine as torch's Optimizer: its parameter groups' learning rates are the engine's.
class TorchOptimizer final : public torch::optim::Optimizer {
 public:
  explicit TorchOptimizer(Engine& engine);

  at::Tensor step(LossClosure closure = nullptr) override;
  // The states lie in elixird. Both throw kInvalidArgument.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // torch's add_param_group() cannot be overridden, and adds to torch's list alone. Throws
  // kInvalidArgument where it did.
  void check_groups() const;
  // The engine has a group more, of these parameters.
  void add_group(const std::vector<at::Tensor>& parameters);

 private:
  Engine& engine_;
};

}  // namespace elixir
