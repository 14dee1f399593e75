#pragma once

// The loop of take_gradients, written once for all instruction sets. It takes the `Lanes` of
// adam_lanes.h and a class `Squares` beside each of them: sixteen FP64 sums, at first zero, with
//
//   unsigned add(lanes)    adds the squares of the finite lanes; returns how many were not finite
//   double total()         lanes l and l + 8, l + 4, l + 2, l + 1 added up
//
// A float's square is exact in FP64, so a fused operation gives the bits of two.

#include <cstring>

#include "optim_cpu/adam_lanes.h"
#include "optim_cpu/gradients.h"

namespace elixir::optim {

// Leaves that are taken at a time. Their sums go to base/norm_sum.h outside of these files. The
// linker may share its functions, so they must not hold instructions of one set.
inline constexpr size_t kLeavesAtOnce = 64;

// Takes elements [at, at + numel) of the span, at most kLeavesAtOnce leaves. Stores one sum of
// squares per leaf, unless `leaves` is null. Returns how many elements were not finite.
size_t take_leaves_scalar(const GradientSpan&, size_t at, size_t numel, double* leaves);
size_t take_leaves_avx2(const GradientSpan&, size_t at, size_t numel, double* leaves);
size_t take_leaves_avx512(const GradientSpan&, size_t at, size_t numel, double* leaves);

template <class Lanes, class Squares, ComputeType kType>
struct GradientLanes {
  static constexpr size_t kLeaf = kNormLeafNumel;
  static constexpr size_t kBytes = kType == ComputeType::kFp32 ? 4 : 2;

  ELIXIR_MATH static void prefetch(const void* const* grads, int n_grads, const float* grad_sum,
                                   size_t at) {
    for (int rank = 0; rank < n_grads; ++rank) {
      // NOLINTNEXTLINE(clang-analyzer-core.*): take_tail has set as many as there are
      __builtin_prefetch(static_cast<const std::byte*>(grads[rank]) + at * kBytes);
    }
    if (grad_sum != nullptr) __builtin_prefetch(grad_sum + at);
  }

  // Takes one leaf of whole vectors. If `squares`, adds to `nonfinite` and returns the sum.
  ELIXIR_MATH static double take_leaf(const GradientSpan& span, size_t at, bool squares,
                                      size_t* nonfinite) {
    Squares sums;
    for (size_t end = at + kLeaf; at < end; at += kRedoVector) {
      prefetch(span.grads, span.n_grads, span.grad_sum, at + kPrefetchNumel);
      Lanes sum = load_grad<Lanes, kType>(span.grads[0], at);
      for (int rank = 1; rank < span.n_grads; ++rank) {
        sum = add(sum, load_grad<Lanes, kType>(span.grads[rank], at));
      }
      if (span.grad_sum != nullptr) {
        if (!span.begins_sum) sum = add(Lanes::load(span.grad_sum + at), sum);
        one_nan(sum).store(span.grad_sum + at);
      }
      if (squares) *nonfinite += sums.add(sum);
    }
    return squares ? sums.total() : 0;
  }

  // Takes the last, shorter leaf through a copy padded with zeros.
  static double take_tail(const GradientSpan& span, size_t at, size_t numel, bool squares,
                          size_t* nonfinite) {
    alignas(64) std::byte grads[kMaxGrads][kLeaf * kBytes];
    alignas(64) float grad_sum[kLeaf] = {};
    const void* pointers[kMaxGrads];
    int rank = 0;
    do {  // there is at least one
      memset(grads[rank], 0, sizeof grads[rank]);
      memcpy(grads[rank], static_cast<const std::byte*>(span.grads[rank]) + at * kBytes,
             numel * kBytes);
      pointers[rank] = grads[rank];
    } while (++rank < span.n_grads);
    GradientSpan padded = span;
    padded.grads = pointers;
    if (span.grad_sum != nullptr) {
      padded.grad_sum = grad_sum;
      memcpy(grad_sum, span.grad_sum + at, numel * sizeof(float));
    }
    const double leaf = take_leaf(padded, 0, squares, nonfinite);
    if (span.grad_sum != nullptr) {
      memcpy(span.grad_sum + at, grad_sum, numel * sizeof(float));
    }
    return leaf;
  }

  static size_t take(const GradientSpan& span, size_t at, size_t numel, double* leaves) {
    const GradientSpan local = span;  // its address goes nowhere: no store can change it
    size_t nonfinite = 0;
    const size_t end = at + numel;
    for (; at + kLeaf <= end; at += kLeaf) {
      const double leaf = take_leaf(local, at, leaves != nullptr, &nonfinite);
      if (leaves != nullptr) *leaves++ = leaf;
    }
    if (at == end) return nonfinite;
    const double leaf = take_tail(span, at, end - at, leaves != nullptr, &nonfinite);
    if (leaves != nullptr) *leaves = leaf;
    return nonfinite;
  }
};

template <class Lanes, class Squares>
size_t take_typed(const GradientSpan& span, size_t at, size_t numel, double* leaves) {
  switch (span.type) {
    case ComputeType::kBf16:
      return GradientLanes<Lanes, Squares, ComputeType::kBf16>::take(span, at, numel, leaves);
    case ComputeType::kFp16:
      return GradientLanes<Lanes, Squares, ComputeType::kFp16>::take(span, at, numel, leaves);
    case ComputeType::kFp32:
      return GradientLanes<Lanes, Squares, ComputeType::kFp32>::take(span, at, numel, leaves);
  }
  return 0;
}

}  // namespace elixir::optim
