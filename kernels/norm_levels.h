#pragma once

// How a launch takes norm_math.h's tree over the tiles: one block a time kFanIn neighbouring sums,
// a power of two, level after level. Compiles as C++ and as CUDA.

#include "kernels/norm_math.h"

namespace elixir::kernels {

inline constexpr int kLevelThreads = 1024;
inline constexpr int kThreadSums = 8;
inline constexpr size_t kFanIn = size_t{kLevelThreads} * kThreadSums;

// How many sums are left of `count`.
constexpr size_t level_count(size_t count) { return (count + kFanIn - 1) / kFanIn; }

// Sums of all levels but the last, whose only sum is the result.
constexpr size_t workspace_sums(size_t numel) {
  size_t sums = 0;
  for (size_t count = TilePart::blocks(numel); count > 1; count = level_count(count)) sums += count;
  return sums;
}

// The tree over this thread's kThreadSums of `count` sums.
ELIXIR_MATH ShardNorm level_thread(const ShardNorm* sums, size_t count, size_t block, int thread) {
  const size_t first = block * kFanIn + static_cast<size_t>(thread) * kThreadSums;
  ShardNorm part[kThreadSums];
  for (int i = 0; i < kThreadSums; ++i) {
    part[i] = first + i < count ? sums[first + i] : ShardNorm{0, 0};
  }
  for (int width = kThreadSums; width > 1; width /= 2) {
    for (int i = 0; i < width / 2; ++i) part[i] = add(part[2 * i], part[2 * i + 1]);
  }
  return part[0];
}

}  // namespace elixir::kernels
