// cast_thread for every block and thread of a launch.

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

}  // namespace elixir::kernels
