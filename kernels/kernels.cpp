#include "kernels/kernels.h"

#include <string_view>

#include "base/check.h"
#include "kernels/alignment.h"
#include "kernels/enqueue.h"

namespace elixir::kernels {
namespace {

Status status_of(cudaError_t outcome, const char* what, size_t numel) {
  if (outcome == cudaSuccess) return Status();
  (void)cudaGetLastError();  // CUDA keeps it for whoever asks next
  const char* const remedy =
      outcome == cudaErrorNoKernelImageForDevice
          ? "; this build is for compute capability 8.0 and later, CMAKE_CUDA_ARCHITECTURES names "
            "others"
          : "; a kernel before it may have failed: CUDA_LAUNCH_BLOCKING=1 finds it, dmesg has the "
            "driver's line (Xid)";
  return error(Code::kInternal, "CUDA failed to run the {} of {} elements: {} ({}){}", what, numel,
               cudaGetErrorString(outcome), cudaGetErrorName(outcome), remedy);
}

}  // namespace

Status launch_adam(const optim::UpdateSpan& span, const optim::AdamStep& step,
                   cudaStream_t stream) {
  ELIXIR_CHECK(span.grad_sum != nullptr || (span.n_grads >= 1 && span.n_grads <= optim::kMaxGrads),
               "{} gradients, 1 to {} are possible", span.n_grads, optim::kMaxGrads);
  if (span.numel == 0) return Status();
  check_aligned(span.grad_sum, "grad_sum");
  for (int rank = 0; span.grad_sum == nullptr && rank < span.n_grads; ++rank) {
    check_aligned(span.grads[rank], "a gradient");
  }
  check_aligned(span.param, "param");
  check_aligned(span.master, "master");
  check_aligned(span.moments[0], "moments[0]");
  check_aligned(span.moments[1], "moments[1]");
  return status_of(enqueue_adam(span, step, stream), "Adam update", span.numel);
}

Status launch_squared_norm(ComputeType type, const void* values, size_t numel, NormSum* result,
                           cudaStream_t stream) {
  check_norm_pointers(values, result);
  return status_of(enqueue_squared_norm(type, values, numel, result, stream), "norm", numel);
}

}  // namespace elixir::kernels
