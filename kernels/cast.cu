// cast_thread and unscale_thread for every block and thread of a launch.

#include "kernels/enqueue.h"
#include "kernels/thread_work.h"

namespace elixir::kernels {
namespace {

template <ComputeType kFrom, ComputeType kTo>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(const ElementOf<kFrom>* values, ElementOf<kTo>* result, size_t numel) {
  cast_thread<kFrom, kTo>(values, result, numel, blockIdx.x, static_cast<int>(threadIdx.x));
}

template <ComputeType kFrom, ComputeType kTo>
cudaError_t enqueue_cast(const void* values, void* result, size_t numel, cudaStream_t stream) {
  if constexpr (kFrom == kTo) {
    return cudaMemcpyAsync(result, values, numel * sizeof(ElementOf<kTo>), cudaMemcpyDeviceToDevice,
                           stream);
  } else {
    return enqueue(cast_kernel<kFrom, kTo>, CastPart::blocks(numel), kThreads, stream,
                   static_cast<const ElementOf<kFrom>*>(values),
                   static_cast<ElementOf<kTo>*>(result), numel);
  }
}

// Most warps count nothing and leave the counter alone.
template <ComputeType kType>
__global__ void __launch_bounds__(kThreads)
    unscale_kernel(ElementOf<kType>* grads, size_t numel, float scale, uint64_t* nonfinite) {
  const uint32_t mine =
      unscale_thread<kType>(grads, numel, scale, blockIdx.x, static_cast<int>(threadIdx.x));
  const uint32_t warp_total = __reduce_add_sync(0xffffffff, mine);
  if (threadIdx.x % 32 == 0 && warp_total != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(nonfinite), warp_total);
  }
}

}  // namespace

cudaError_t enqueue_cast_from_fp32(ComputeType to, const float* from, void* result, size_t numel,
                                   cudaStream_t stream) {
  return for_type(to, [&](auto type) {
    return enqueue_cast<ComputeType::kFp32, type()>(from, result, numel, stream);
  });
}

cudaError_t enqueue_cast_to_fp32(ComputeType from, const void* values, float* result, size_t numel,
                                 cudaStream_t stream) {
  return for_type(from, [&](auto type) {
    return enqueue_cast<type(), ComputeType::kFp32>(values, result, numel, stream);
  });
}

cudaError_t enqueue_unscale(ComputeType type, void* grads, size_t numel, float scale,
                            uint64_t* nonfinite, cudaStream_t stream) {
  return for_type(type, [&](auto type) {
    return enqueue(unscale_kernel<type()>, CastPart::blocks(numel), kThreads, stream,
                   static_cast<ElementOf<type()>*>(grads), numel, scale, nonfinite);
  });
}

}  // namespace elixir::kernels
