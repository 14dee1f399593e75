#pragma once

#include <cstddef>

#include "kernels/element.h"

namespace elixir::kernels {

// Says which elements a thread takes. A block of kThreads takes kVectors * kThreads consecutive
// vectors of kVectorNumel elements. Each thread takes every kThreads-th of them, so that a warp's
// accesses are contiguous.
template <int kThreads, int kVectors>
struct BlockPart {
  static constexpr size_t kStride = static_cast<size_t>(kThreads) * kVectorNumel;
  static constexpr size_t kBlockNumel = kVectors * kStride;

  static constexpr size_t blocks(size_t numel) { return (numel + kBlockNumel - 1) / kBlockNumel; }

  // Calls whole(at) once for the vectors at, at + kStride, ... If the last block is not full, calls
  // one(i) instead for each element of the vectors, in ascending order. REQUIRES: block <
  // blocks(numel).
  template <class Whole, class One>
  ELIXIR_MATH static void visit(size_t numel, size_t block, int thread, Whole whole, One one) {
    const size_t first = block * kBlockNumel;
    const size_t at = first + static_cast<size_t>(thread) * kVectorNumel;
    if (numel - first >= kBlockNumel) return whole(at);
    for (int v = 0; v < kVectors; ++v) {
      const size_t begin = at + v * kStride;
      for (size_t i = begin; i < numel && i < begin + kVectorNumel; ++i) one(i);
    }
  }
};

}  // namespace elixir::kernels
