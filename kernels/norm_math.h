#pragma once

// The squared L2 norm of some gradients, in FP64, in an order of summation that is a function of
// their number alone:
//
//   tile t    elements [t * kTileNumel, (t + 1) * kTileNumel)
//   lane l    of a tile sums the squares of every kNormLanes-th vector of kVectorNumel elements,
//             beginning with the l-th, in ascending order
//   tree      the sums of a tile's lanes, then those of the tiles, are added pairwise, neighbours
//             first, level by level, as if zeros filled the last level up to a power of two
//
// A float's square is exact in FP64, so a fused multiply-add and its two halves agree, and adding
// what is absent, +0, changes no sum. Compiles as C++ and as CUDA.

#include "kernels/block_part.h"

namespace elixir::kernels {

inline constexpr int kNormLanes = 256;
inline constexpr int kLaneVectors = 8;
using TilePart = BlockPart<kNormLanes, kLaneVectors>;
inline constexpr size_t kTileNumel = TilePart::kBlockNumel;
static_assert(kTileNumel == 8192 && kVectorNumel == 4, "the order is a promise");

// Elements that are not finite are counted and count as zero in the sum.
struct ShardNorm {
  double sum_sq;
  uint64_t nonfinite;
};

ELIXIR_MATH void add_element(ShardNorm& sum, float value) {
  const bool finite = is_finite(value);
  const double wide = finite ? value : 0;
#if defined(__CUDA_ARCH__)
  sum.sum_sq = __fma_rn(wide, wide, sum.sum_sq);
#else
  sum.sum_sq = wide * wide + sum.sum_sq;
#endif
  sum.nonfinite += finite ? 0 : 1;
}

ELIXIR_MATH ShardNorm add(const ShardNorm& a, const ShardNorm& b) {
  return {a.sum_sq + b.sum_sq, a.nonfinite + b.nonfinite};
}

template <ComputeType kType>
ELIXIR_MATH ShardNorm norm_lane(const ElementOf<kType>* grads, size_t numel, size_t tile,
                                int lane) {
  ShardNorm sum = {0, 0};
  TilePart::visit(
      numel, tile, lane,
      [&](size_t at) {
        Pack<float, kVectorNumel> vector[kLaneVectors];
        for (int v = 0; v < kLaneVectors; ++v) {
          vector[v] = load_widened<kType, kVectorNumel>(grads + at + v * TilePart::kStride);
        }
        for (const Pack<float, kVectorNumel>& one : vector) {
          for (float value : one.lane) add_element(sum, value);
        }
      },
      [&](size_t i) { add_element(sum, Format<kType>::widen(grads[i])); });
  return sum;
}

// The tree over leaf(first) ... leaf(first + width - 1), of which those from `count` on are absent.
// `width` is a power of two.
template <class Leaf>
ShardNorm norm_tree(const Leaf& leaf, size_t first, size_t width, size_t count) {
  if (first >= count) return {0, 0};
  if (width == 1) return leaf(first);
  return add(norm_tree(leaf, first, width / 2, count),
             norm_tree(leaf, first + width / 2, width / 2, count));
}

// What launch_squared_norm computes, on the host, by the definition.
template <ComputeType kType>
ShardNorm squared_norm(const ElementOf<kType>* grads, size_t numel) {
  const auto tile = [&](size_t t) {
    const auto lane = [&](size_t l) {
      return norm_lane<kType>(grads, numel, t, static_cast<int>(l));
    };
    return norm_tree(lane, 0, kNormLanes, kNormLanes);
  };
  const size_t tiles = TilePart::blocks(numel);
  size_t width = 1;
  while (width < tiles) width *= 2;
  return norm_tree(tile, 0, width, tiles);
}

}  // namespace elixir::kernels
