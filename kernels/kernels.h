#pragma once

// What runs on a CUDA device, as functions that enqueue it. No torch, no allocation, no
// synchronisation; all pointers but the spans' own arrays are device memory, 16-byte aligned. A
// launch that CUDA refuses is a kInternal status with CUDA's own text, and leaves no error behind.
// The arithmetic is not here: optim_cpu/adam_math.h, optim_cpu/formats.h and kernels/norm_math.h,
// which the host compiles too.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/compute_type.h"
#include "base/status.h"
#include "kernels/norm_math.h"
#include "optim_cpu/adam.h"

namespace elixir::kernels {

// optim::adam_update on device memory: the same bits. span.grads is a host array, read before the
// call returns; 1 <= n_grads <= optim::kMaxGrads.
Status launch_adam(const optim::AdamSpan& span, const optim::AdamStep& step, cudaStream_t stream);

// The conversions of optim_cpu/formats.h, bit by bit; kFp32 is a copy.
Status launch_cast_from_fp32(ComputeType to, const float* from, void* result, size_t numel,
                             cudaStream_t stream);
Status launch_cast_to_fp32(ComputeType from, const void* values, float* result, size_t numel,
                           cudaStream_t stream);

// For clipping and loss scaling, with the squared norm below; no caller yet.
// Multiplies gradients in place, as floats, and adds to *nonfinite how many were not finite before.
// Rounds to nearest even; a NaN is the one of optim_cpu/formats.h.
Status launch_unscale(ComputeType type, void* grads, size_t numel, float scale, uint64_t* nonfinite,
                      cudaStream_t stream);

// The squared L2 norm of a shard, in FP64, and how many elements are not finite (they count as
// zero in the norm). The order of summation is a function of numel alone: not of the device, the
// launch, or the run; squared_norm in kernels/norm_math.h gives the same bits on the host.
// `workspace` is squared_norm_workspace_bytes(numel) of device memory, unused once the stream has
// got past the call.
size_t squared_norm_workspace_bytes(size_t numel);
Status launch_squared_norm(ComputeType type, const void* grads, size_t numel, ShardNorm* result,
                           void* workspace, cudaStream_t stream);

}  // namespace elixir::kernels
