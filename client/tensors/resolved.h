#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace elixir {

// `tensor` with its final bytes. LibTorch delays a negation, a conjugation and zeros by a bit of
// the tensor, which a copy of its memory would miss.
inline at::Tensor resolved(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg();
}

}  // namespace elixir
