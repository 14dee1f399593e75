#pragma once

#include <cstdint>

#include "base/export.h"
#include "client/torch_device/cuda_library.h"

// What libelixir_cuda.so exports and load_cuda_library() looks up; beside it elixir_gpu_probe
// (kernels/gpu_probe.h).
extern "C" {
ELIXIR_PUBLIC uint32_t elixir_cuda_library_version();
ELIXIR_PUBLIC elixir::CudaLibrary* elixir_cuda_library();  // lives as long as the process
}
