#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "base/export.h"

namespace elixir {

// Activation checkpointing (Chen et al., arXiv 1604.06174): runs `function(inputs)` and keeps only
// the inputs. When backward needs the activations, it runs the function again, with the random
// numbers of the first run. Gradients have the same bits as without checkpointing.
//
// The function must compute the same values again. It may use its inputs, parameters, constants and
// torch's default generators (of the CPU, and of the inputs' device). Its other effects happen
// twice: a generator of your own advances twice, and BatchNorm counts the batch twice. The second
// run leaves out operators behind the last one whose result backward reads. In their place the
// function gets tensors without memory, and LibTorch throws if it asks for that. Let the error
// pass: the function then runs once more, as a whole. Autocast is as in forward, without its cache.
// backward's thread may call the function. The function may return parameters, inputs and buffers:
// the caller gets aliases of them. Without gradients (NoGradGuard) it is simply called.
//
// Throws elixir::Error (kInvalidArgument) for an undefined input, and if the function writes to an
// input in place. In backward it throws this error in three cases: the function returns another
// number of tensors, or a tensor of another shape; step() or set_parameter() has changed a
// parameter that it reads; or it runs under torch::autograd::grad(), backward() with inputs or
// backward() with create_graph.
using TensorsFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
ELIXIR_PUBLIC std::vector<at::Tensor> checkpoint(const TensorsFunction& function,
                                                 const std::vector<at::Tensor>& inputs);

// One tensor in, one out.
ELIXIR_PUBLIC at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function,
                                    const at::Tensor& input);

}  // namespace elixir
