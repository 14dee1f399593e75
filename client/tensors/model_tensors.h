#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "base/export.h"

namespace elixir {

// A tensor with the name that errors, plans and files use.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The tensors that an optimizer is built on. They are the model's own handles: replacing a tensor's
// data replaces the model's.
struct ModelTensors {
  std::vector<NamedTensor> parameters = {};
  std::vector<NamedTensor> buffers = {};
};

// The tensors of a module, each under its first name.
ELIXIR_PUBLIC ModelTensors tensors_of(const torch::nn::Module& model);

}  // namespace elixir
