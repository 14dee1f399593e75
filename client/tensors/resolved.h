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

// Null, or what a tensor is whose elements are not just the bytes of its memory: who copies those
// loses something. Any tensor.
inline const char* special_kind(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch()) {
    return "of a tensor class of its own (a quantised one, say)";
  }
  if (tensor.is_nested()) return "nested";
  if (tensor.is_quantized()) return "quantised, with scales outside of its memory";
  return tensor.layout() == at::kStrided ? nullptr : "not dense (sparse, say)";
}

}  // namespace elixir
