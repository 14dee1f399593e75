#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/export.h"

namespace elixir {

// While it lives, this thread's factory functions make tensors without memory. torch::nn's
// constructors use these functions, too. The tensors lie on the meta device and remember the
// operators that would have given them their values. So you can build a model that is larger than
// the memory; materialise() then makes one tensor at a time.
//
// If an operator is given a generator of its own, its values are those of the same code without the
// guard. An operator that takes torch's default generator gets a seed of its own, drawn from that
// generator in the order of the calls. So its values depend on torch::manual_seed() and on the
// order of the module's constructors, and on nothing that comes later. A generator that is given to
// several operators is seeded anew, from itself, after each.
//
// Code that writes through data_ptr(), as torch::tensor(values) does, fails with LibTorch's
// message. Make such a tensor before the guard, or fill it with operators.
class ELIXIR_PUBLIC MetaInit {
 public:
  MetaInit();
  MetaInit(const MetaInit&) = delete;
  MetaInit& operator=(const MetaInit&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard every_operator_;
};

// Whether the tensor was made under MetaInit (or is a view of one that was).
ELIXIR_PUBLIC bool remembers_its_values(const at::Tensor& tensor);

// A new tensor with the values, sizes and strides that `meta` stands for, without gradient. It has
// equal bits each time, in any order of calls and on any device, because the CPU computes it. A
// tensor that is not a meta tensor keeps its values, and is returned on `device`. Any thread.
//
// Throws elixir::Error (kInvalidArgument) for a meta tensor that was not made under MetaInit. It
// also throws if its values were copied from a tensor that has been written to since.
ELIXIR_PUBLIC at::Tensor materialise(const at::Tensor& meta, at::Device device = at::kCPU);

}  // namespace elixir
