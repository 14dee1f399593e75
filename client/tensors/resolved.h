#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace elixir {

// `tensor` with its final bytes. LibTorch delays a negation, a conjugation and zeros: it only sets
// a bit of the tensor. A copy of the tensor's memory would miss this.
inline at::Tensor resolved(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg();
}

// Null if the tensor's elements are just the bytes of its memory. Otherwise its kind, for messages:
// a copy of the memory would lose something. It takes any tensor.
inline const char* special_kind(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch()) {
    return "of a tensor class of its own (for example, quantised)";
  }
  if (tensor.is_nested()) return "nested";
  if (tensor.is_quantized()) return "quantised, with scales outside of its memory";
  return tensor.layout() == at::kStrided ? nullptr : "not dense (sparse, say)";
}

}  // namespace elixir
