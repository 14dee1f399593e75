#pragma once

// Functions that enqueue work on a CUDA device. No torch, no allocation, no synchronisation. All
// pointers except the spans' own arrays are device memory, aligned as kernels/alignment.h says. If
// CUDA rejects a launch, the status is kInternal with CUDA's own text, and no error is left behind.
// The arithmetic is in headers that the host compiles, too: optim_cpu/adam_math.h,
// optim_cpu/formats.h, base/norm_sum.h and kernels/norm_work.h.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/compute_type.h"
#include "base/norm_sum.h"
#include "base/status.h"
#include "optim_cpu/adam.h"

namespace elixir::kernels {

// optim::adam_update on device memory, with the same bits. The array span.grads is in host memory
// and is read before the call returns, with 1 <= n_grads <= optim::kMaxGrads. The array
// span.grad_sum is in device memory.
Status launch_adam(const optim::UpdateSpan& span, const optim::AdamStep& step, cudaStream_t stream);

// Writes the sum of the squares of `numel` elements to `result`, replacing what it holds. It has
// the bits of optim::take_gradients, whatever the device and the launch. The array `values` begins
// at a multiple of kNormLeafNumel elements of its parameter.
Status launch_squared_norm(ComputeType type, const void* values, size_t numel, NormSum* result,
                           cudaStream_t stream);

}  // namespace elixir::kernels
