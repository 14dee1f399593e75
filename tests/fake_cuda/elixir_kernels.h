#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

#include "tests/fake_cuda/runtime.h"

namespace fake_cuda {

// Elixir's own kernels, done on the host by what they are made of (kernels/thread_work.h,
// kernels/norm_work.h), on device memory by its aliases. `name` is the kernel's demangled name;
// `arguments` as cudaLaunchKernel has them, read before the call returns. Nothing for other
// kernels.
std::optional<Work> elixir_kernel(const std::string& name, void** arguments);

}  // namespace fake_cuda
