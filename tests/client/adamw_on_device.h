#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "client/train/engine.h"

namespace elixir::test {

// An AdamW on a device that Options cannot name.
class AdamWOnDevice : public Optimizer {
 public:
  AdamWOnDevice(torch::nn::Module& model, const optim::AdamOptions& hyperparameters,
                const Options& runtime, std::unique_ptr<Device> device,
                const std::vector<ParamGroup>& groups = {})
      : Optimizer(std::make_unique<Engine>(tensors_of(model), hyperparameters, groups, runtime,
                                           PlacedDevice{std::move(device), "test", "", -1})) {}
};

}  // namespace elixir::test
