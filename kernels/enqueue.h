#pragma once

// The functions of the .cu files, for kernels.cpp, which checks arguments and makes messages,
// since nvcc does not compile fmt's format strings. REQUIRES: numel > 0; aligned arrays.

#include <cuda_runtime.h>

#include <limits>
#include <type_traits>

#include "base/norm_sum.h"
#include "optim_cpu/adam.h"

namespace elixir::kernels {

cudaError_t enqueue_adam(const optim::UpdateSpan& span, const optim::AdamStep& step,
                         cudaStream_t stream);
// Any numel, 0 included.
cudaError_t enqueue_squared_norm(ComputeType type, const void* values, size_t numel,
                                 NormSum* result, cudaStream_t stream);

// visit(std::integral_constant<ComputeType, type>()).
template <class Visit>
cudaError_t for_type(ComputeType type, const Visit& visit) {
  switch (type) {
    case ComputeType::kBf16:
      return visit(std::integral_constant<ComputeType, ComputeType::kBf16>());
    case ComputeType::kFp16:
      return visit(std::integral_constant<ComputeType, ComputeType::kFp16>());
    case ComputeType::kFp32:
      return visit(std::integral_constant<ComputeType, ComputeType::kFp32>());
  }
  return cudaErrorInvalidValue;
}

// Unlike kernel<<<...>>>, returns the result of this launch alone. An error that somebody left
// behind is not taken for its own.
template <class... Parameters, class... Arguments>
cudaError_t enqueue(void (*kernel)(Parameters...), size_t blocks, int threads, cudaStream_t stream,
                    const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  // Converts each argument to the parameter's own type.
  return [&](std::remove_const_t<Parameters>... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                            dim3(static_cast<unsigned>(blocks)),
                            dim3(static_cast<unsigned>(threads)), pointers, 0, stream);
  }(arguments...);
}

}  // namespace elixir::kernels
