#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

#include "tests/fake_cuda/runtime.h"

namespace fake_cuda {

// Work that does one of Elixir's own kernels on the host. It uses the kernels' own parts
// (kernels/thread_work.h, kernels/norm_work.h) on aliases of device memory. `name` is the kernel's
// demangled name. `arguments` are those of cudaLaunchKernel, read before the call returns. Empty
// for other kernels.
std::optional<Work> elixir_kernel(const std::string& name, void** arguments);

}  // namespace fake_cuda
