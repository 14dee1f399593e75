#pragma once

// What differs between the releases of PyTorch that Elixir runs on (cmake/FindLibTorch.cmake has
// the range), and which one a process has.

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>

#include "base/status.h"

namespace elixir {

// What adds to a leaf's .grad, as LibTorch owns it: a std::shared_ptr, and an intrusive_ptr from
// 2.13 on.
using AccumulatorPointer =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

struct TorchVersion {
  uint32_t major = 0, minor = 0;
  bool operator==(const TorchVersion&) const = default;
};

// That of the headers which Elixir was compiled with.
TorchVersion torch_of_build();
// That of the libtorch_cpu.so which the process has.
TorchVersion torch_of_process();

// LibTorch's layouts change with each minor version. So code for one minor in a process with
// another reads other members than it means to. kVersionMismatch: `process` is not `build`.
Status check_torch(TorchVersion build, TorchVersion process);

// As check_torch(torch_of_build(), torch_of_process()), by throwing Error. The first call looks.
// Any thread.
void require_torch_of_build();

}  // namespace elixir
