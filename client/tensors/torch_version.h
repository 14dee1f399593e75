#pragma once

// Elixir runs on several releases of PyTorch (cmake/FindLibTorch.cmake has the range). This file
// has their differences, and asks which release a process has.

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>

#include "base/status.h"

namespace elixir {

// LibTorch owns the node that adds to a leaf's .grad by a std::shared_ptr, and later releases by an
// intrusive_ptr.
using AccumulatorPointer =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

struct TorchVersion {
  uint32_t major = 0, minor = 0;
  bool operator==(const TorchVersion&) const = default;
};

// The version of the headers that Elixir was compiled with.
TorchVersion torch_of_build();
// The version of the libtorch_cpu.so that the process has.
TorchVersion torch_of_process();

// LibTorch's layouts change with each minor version. So code for one minor in a process with
// another reads other members than it means to. kVersionMismatch: `process` is not `build`.
Status check_torch(TorchVersion build, TorchVersion process);

// As check_torch(torch_of_build(), torch_of_process()), by throwing Error. The first call looks.
// Any thread.
void require_torch_of_build();

}  // namespace elixir
