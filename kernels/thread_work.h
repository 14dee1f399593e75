#pragma once

// The work of one thread in each element-wise launch. A kernel calls one of these functions with
// its block and thread numbers. The host tests make the same calls in a loop.

#include "kernels/block_part.h"
#include "optim_cpu/adam.h"

namespace elixir::kernels {

inline constexpr int kThreads = 256;  // per block

// The arrays of an UpdateSpan, except the gradients.
struct AdamArrays {
  void* param;
  void* completion;  // UpdateSpan::master
  float* exp_avg;
  float* exp_avg_sq;
};

// adam_update on kVectors times kNumel elements, kStride apart, with gradients of type kGrad. All
// loads come before the first result, because bandwidth needs many bytes in flight.
template <ComputeType kType, ComputeType kGrad, int kNumel, int kVectors, size_t kStride>
ELIXIR_MATH void adam_at(const AdamArrays& arrays, const void* const* grads, int n_grads, size_t at,
                         const optim::AdamConstants<float>& step) {
  using Element = ElementOf<kType>;
  using Grad = ElementOf<kGrad>;
  auto* const param = static_cast<Element*>(arrays.param);
  auto* const completion = static_cast<CompletionOf<kType>*>(arrays.completion);
  Pack<float, kNumel> grad[kVectors], master[kVectors], exp_avg[kVectors], exp_avg_sq[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const size_t i = at + v * kStride;
    grad[v] = load_widened<kGrad, kNumel>(static_cast<const Grad*>(grads[0]) + i);
    master[v] = load_master<kType, kNumel>(param, completion, i);
    exp_avg[v] = load<kNumel>(arrays.exp_avg + i);
    exp_avg_sq[v] = load<kNumel>(arrays.exp_avg_sq + i);
  }
#if defined(__CUDA_ARCH__)
#pragma unroll 4
#endif
  for (int rank = 1; rank < n_grads; ++rank) {
    const auto* const more = static_cast<const Grad*>(grads[rank]) + at;
    for (int v = 0; v < kVectors; ++v) {
      const Pack<float, kNumel> term = load_widened<kGrad, kNumel>(more + v * kStride);
      for (int i = 0; i < kNumel; ++i) {
        grad[v].lane[i] = optim::add(grad[v].lane[i], term.lane[i]);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int i = 0; i < kNumel; ++i) {
      optim::adam_formula<float>(step, grad[v].lane[i], master[v].lane[i], exp_avg[v].lane[i],
                                 exp_avg_sq[v].lane[i]);
    }
    const size_t i = at + v * kStride;
    store_master<kType>(master[v], param, completion, i);
    store(arrays.exp_avg + i, exp_avg[v]);
    store(arrays.exp_avg_sq + i, exp_avg_sq[v]);
  }
}

inline constexpr int kAdamVectors = 2;
using AdamPart = BlockPart<kThreads, kAdamVectors>;

// kGrad is kType, or kFp32 if the gradient is UpdateSpan::grad_sum.
template <ComputeType kType, ComputeType kGrad>
ELIXIR_MATH void adam_thread(const AdamArrays& arrays, const void* const* grads, int n_grads,
                             size_t numel, const optim::AdamConstants<float>& step, size_t block,
                             int thread) {
  AdamPart::visit(
      numel, block, thread,
      [&](size_t at) {
        adam_at<kType, kGrad, kVectorNumel, kAdamVectors, AdamPart::kStride>(arrays, grads, n_grads,
                                                                             at, step);
      },
      [&](size_t at) { adam_at<kType, kGrad, 1, 1, 0>(arrays, grads, n_grads, at, step); });
}

}  // namespace elixir::kernels
