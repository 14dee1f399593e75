// adam_thread for every block and thread of a launch.

#include "kernels/enqueue.h"
#include "kernels/thread_work.h"

namespace elixir::kernels {
namespace {

// Of blocks on a multiprocessor: 64 registers a thread, without which some types spill.
constexpr int kAdamBlocks = 4;

struct GradPointers {
  const void* at[optim::kMaxGrads];
};

template <ComputeType kType, ComputeType kGrad>
__global__ void __launch_bounds__(kThreads, kAdamBlocks)
    adam_kernel(AdamArrays arrays, const void* grad, size_t numel,
                optim::AdamConstants<float> step) {
  adam_thread<kType, kGrad>(arrays, &grad, 1, numel, step, blockIdx.x,
                            static_cast<int>(threadIdx.x));
}

template <ComputeType kType>
__global__ void __launch_bounds__(kThreads, kAdamBlocks)
    adam_sum_kernel(AdamArrays arrays, const __grid_constant__ GradPointers grads, int n_grads,
                    size_t numel, optim::AdamConstants<float> step) {
  adam_thread<kType, kType>(arrays, grads.at, n_grads, numel, step, blockIdx.x,
                            static_cast<int>(threadIdx.x));
}

}  // namespace

cudaError_t enqueue_adam(const optim::UpdateSpan& span, const optim::AdamStep& step,
                         cudaStream_t stream) {
  return for_type(span.type, [&](auto type) {
    const AdamArrays arrays = {span.param, span.master, span.moments[0], span.moments[1]};
    const optim::AdamConstants<float> constants(step);
    const size_t blocks = AdamPart::blocks(span.numel);
    if (span.grad_sum != nullptr) {
      const auto kernel = adam_kernel<type(), ComputeType::kFp32>;
      return enqueue(kernel, blocks, kThreads, stream, arrays,
                     static_cast<const void*>(span.grad_sum), span.numel, constants);
    }
    if (span.n_grads == 1) {
      return enqueue(adam_kernel<type(), type()>, blocks, kThreads, stream, arrays, span.grads[0],
                     span.numel, constants);
    }
    GradPointers grads = {};
    for (int rank = 0; rank < span.n_grads; ++rank) grads.at[rank] = span.grads[rank];
    return enqueue(adam_sum_kernel<type()>, blocks, kThreads, stream, arrays, grads, span.n_grads,
                   span.numel, constants);
  });
}

}  // namespace elixir::kernels
