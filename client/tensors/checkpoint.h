#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "base/export.h"

namespace elixir {

// Activation checkpointing (Chen et al., arXiv 1604.06174): runs `function(inputs)` keeping nothing
// but the inputs, and runs it again when backward needs what it left out, with the random numbers
// of the first time. Gradients have the bits they would have without it.
//
// The function must compute the same again: from its inputs, from parameters, from constants and
// from torch's default generators (of the CPU, and of the inputs' device). Autocast is as it was in
// forward, without its cache. It may be called from backward's thread. Without gradients
// (NoGradGuard) it is simply called. Throws elixir::Error (kInvalidArgument) in backward when it
// then returns another number of tensors, or one of another shape, and under
// torch::autograd::grad() or backward() with inputs.
using TensorsFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
ELIXIR_PUBLIC std::vector<at::Tensor> checkpoint(const TensorsFunction& function,
                                                 const std::vector<at::Tensor>& inputs);

// One tensor in, one out.
ELIXIR_PUBLIC at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function,
                                    const at::Tensor& input);

}  // namespace elixir
