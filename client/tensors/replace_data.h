#pragma once

#include <ATen/core/Tensor.h>

namespace elixir {

// Tensor::set_data() between any two kinds of dense tensors. LibTorch's own cannot exchange a meta
// tensor with a tensor of a device, or with a view of a chunk. `tensor` keeps its identity, its
// requires_grad and its hooks. It must have no gradient. It gets the storage, sizes, type and
// device of `data`, which must not require a gradient.
void replace_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace elixir
