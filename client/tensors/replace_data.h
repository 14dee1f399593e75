#pragma once

#include <ATen/core/Tensor.h>

namespace elixir {

// Tensor::set_data() between any two kinds of dense tensors: LibTorch's own refuses to exchange a
// meta tensor and one of a device, and a meta tensor and a view of a chunk. `tensor` keeps its
// identity, its requires_grad and its hooks; it must have no gradient. Its storage, sizes, type and
// device become those of `data`, which must require no gradient.
void replace_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace elixir
