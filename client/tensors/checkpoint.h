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
// from torch's default generators (of the CPU, and of the inputs' device). What else it does is
// done twice: a generator of one's own goes on, BatchNorm counts the batch twice. Autocast is as it
// was in forward, without its cache. It may be called from backward's thread. It may return
// parameters, inputs and buffers: the caller gets aliases of them. Without gradients (NoGradGuard)
// it is simply called.
//
// Throws elixir::Error (kInvalidArgument) for an undefined input, and where the function writes one
// in place. Throws it in backward when the function then returns another number of tensors, or one
// of another shape; when step() or set_parameter() has changed a parameter that it reads; under
// torch::autograd::grad(), backward() with inputs and backward() with create_graph.
using TensorsFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
ELIXIR_PUBLIC std::vector<at::Tensor> checkpoint(const TensorsFunction& function,
                                                 const std::vector<at::Tensor>& inputs);

// One tensor in, one out.
ELIXIR_PUBLIC at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function,
                                    const at::Tensor& input);

}  // namespace elixir
