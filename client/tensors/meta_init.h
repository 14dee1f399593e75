#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/export.h"

namespace elixir {

// While it lives, what this thread's factory functions make (those that torch::nn's constructors
// call among them) has no memory: tensors lie on the meta device and remember the operators that
// would have given them their values. A model larger than any memory is built so; materialise()
// then makes one tensor at a time.
//
// Values are those of the same code without the guard where an operator is given a generator of its
// own; operators that take torch's default generator get a seed each, drawn from it in the order of
// the calls, so that values depend on torch::manual_seed() and on the order of the module's
// constructors, and on nothing that comes later. A generator that is given to several operators is
// seeded anew, from itself, after each.
//
// Not for code that writes through data_ptr(), as torch::tensor(values) does: it fails, with
// LibTorch's message. Make such a tensor before the guard, or fill it with operators.
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

// A new tensor of the values, sizes and strides that `meta` stands for, without gradient; equal
// bits each time, in any order of calls and on any device (it is computed on the CPU). A tensor
// that is on another device than meta is returned as it is, on `device`. Any thread.
//
// Throws elixir::Error (kInvalidArgument) for a meta tensor that was not made under MetaInit, and
// when a tensor that its values were copied from has been written to since.
ELIXIR_PUBLIC at::Tensor materialise(const at::Tensor& meta, at::Device device = at::kCPU);

}  // namespace elixir
