#pragma once

// The sum of squares of base/norm_sum.h, with the leaves of optim_cpu/gradients.h, divided among
// the threads of a launch. Four threads take a leaf. Each has four of its sixteen lanes, which are
// the elements of a vector. Compiles as C++ and as CUDA: the host tests do in loops what a launch
// does.

#include "base/norm_sum.h"
#include "kernels/element.h"

namespace elixir::kernels {

inline constexpr int kNormThreads = 256;  // per block
inline constexpr int kLeafThreads = 4;
inline constexpr int kLeafVectors = kNormLeafNumel / (kLeafThreads * kVectorNumel);
static_assert(kLeafVectors == 4 && kVectorNumel == 4, "sixteen lanes");

// In a turn, a block takes as many leaves as it has threads. In each run of kLeafThreads threads,
// the i-th thread keeps the sum of the run's i-th leaf.
inline constexpr size_t kTurnNumel = size_t{kNormThreads} * kNormLeafNumel;
ELIXIR_MATH size_t norm_turns(size_t numel) { return (numel + kTurnNumel - 1) / kTurnNumel; }

// The first element of the i-th leaf that a thread's run takes.
ELIXIR_MATH size_t leaf_begin(size_t turn, int thread, int i) {
  const int run = thread / kLeafThreads, runs = kNormThreads / kLeafThreads;
  return turn * kTurnNumel + static_cast<size_t>(i * runs + run) * kNormLeafNumel;
}

// A thread's part of a leaf: lane l's element 16 v + l is vector[v].lane[l % 4].
struct LeafPart {
  Pack<float, kVectorNumel> vector[kLeafVectors];
};

// Elements from `numel` on are zeros.
template <ComputeType kType>
ELIXIR_MATH LeafPart load_leaf(const ElementOf<kType>* values, size_t numel, size_t begin,
                               int thread) {
  LeafPart part;
  const size_t first = begin + static_cast<size_t>(thread % kLeafThreads) * kVectorNumel;
  for (int v = 0; v < kLeafVectors; ++v) {
    const size_t at = first + static_cast<size_t>(v) * kLeafThreads * kVectorNumel;
    if (begin + kNormLeafNumel <= numel) {
      part.vector[v] = load_widened<kType, kVectorNumel>(values + at);
      continue;
    }
    for (int i = 0; i < kVectorNumel; ++i) {
      part.vector[v].lane[i] = at + i < numel ? Format<kType>::widen(values[at + i]) : 0.0f;
    }
  }
  return part;
}

struct LaneSums {
  double lane[kVectorNumel];
};

// A float's square is exact in FP64, so a fused operation gives the bits of two. A value that is
// not finite is counted, and its square is zero.
ELIXIR_MATH LaneSums square_lanes(const LeafPart& part, uint32_t& nonfinite) {
  LaneSums sums = {};
  for (const Pack<float, kVectorNumel>& vector : part.vector) {
    for (int i = 0; i < kVectorNumel; ++i) {
      const bool finite = is_finite(vector.lane[i]);
      const double value = finite ? vector.lane[i] : 0.0f;
#if defined(__CUDA_ARCH__)
      sums.lane[i] = __fma_rn(value, value, sums.lane[i]);
#else
      sums.lane[i] += value * value;
#endif
      nonfinite += finite ? 0 : 1;
    }
  }
  return sums;
}

// Adds up a leaf's lanes as a tree. First threads t and t + 2 (lanes l and l + 8), then t and t + 1
// (l + 4), then within a thread (l + 2, l + 1). IEEE addition commutes.
ELIXIR_MATH LaneSums add(const LaneSums& a, const LaneSums& b) {
  LaneSums sums;
  for (int i = 0; i < kVectorNumel; ++i) sums.lane[i] = a.lane[i] + b.lane[i];
  return sums;
}
ELIXIR_MATH double add_up(const LaneSums& sums) {
  return (sums.lane[0] + sums.lane[2]) + (sums.lane[1] + sums.lane[3]);
}

// The sum of leaves that lie in the same three limbs of a NormSum, as most neighbours do. So few
// additions to memory are needed. Exact, like the NormSum itself.
struct LimbWindow {
  int limb = 0;
  uint64_t part[3] = {0, 0, 0};
};

// Adds a leaf to the window. If the leaf lies in other limbs, first calls flush(window) and begins
// a new window.
template <class Flush>
ELIXIR_MATH void add_leaf(LimbWindow& window, double leaf, const Flush& flush) {
  int first = -1;
  uint64_t part[3] = {0, 0, 0};
  split_leaf(leaf, [&](int limb, uint64_t value) {
    if (first < 0) first = limb;
    part[limb - first] = value;
  });
  if (first < 0) return;  // zero
  if (first != window.limb) {
    flush(window);
    window = {};
    window.limb = first;
  }
  for (int i = 0; i < 3; ++i) window.part[i] += part[i];
}

}  // namespace elixir::kernels
