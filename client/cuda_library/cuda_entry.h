#pragma once

#include <cstdint>

#include "base/export.h"
#include "client/torch_device/cuda_library.h"

// load_cuda_library() looks up these exports of libelixir_cuda.so. The library also exports
// elixir_gpu_probe (kernels/gpu_probe.h).
extern "C" {
ELIXIR_PUBLIC uint32_t elixir_cuda_library_version();
ELIXIR_PUBLIC elixir::CudaLibrary* elixir_cuda_library();  // lives as long as the process
}
