#pragma once

// What runs on a CUDA device, as functions that enqueue it. No torch, no allocation, no
// synchronisation; all pointers but the spans' own arrays are device memory, aligned as
// kernels/alignment.h says. A launch that CUDA refuses is a kInternal status with CUDA's own text,
// and leaves no error behind. The arithmetic is not here: optim_cpu/adam_math.h,
// optim_cpu/formats.h, base/norm_sum.h and kernels/norm_work.h, which the host compiles too.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/compute_type.h"
#include "base/norm_sum.h"
#include "base/status.h"
#include "optim_cpu/adam.h"

namespace elixir::kernels {

// optim::adam_update on device memory: the same bits. span.grads is a host array, read before the
// call returns, with 1 <= n_grads <= optim::kMaxGrads; span.grad_sum is device memory.
Status launch_adam(const optim::UpdateSpan& span, const optim::AdamStep& step, cudaStream_t stream);

// The squares of `numel` elements into one NormSum, replacing what it holds: with the bits of
// optim::take_gradients, whatever the device and the launch. `values` begins at a multiple of
// kNormLeafNumel elements of its parameter.
Status launch_squared_norm(ComputeType type, const void* values, size_t numel, NormSum* result,
                           cudaStream_t stream);

}  // namespace elixir::kernels
