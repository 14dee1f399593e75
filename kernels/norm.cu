// norm_math.h's lanes and trees. One block sums a tile; then one block sums kFanIn neighbouring
// sums, as often as it takes: a tree of such trees is the one tree.

#include "kernels/enqueue.h"
#include "kernels/norm_levels.h"

namespace elixir::kernels {
namespace {

static_assert(sizeof(ShardNorm) == 16);

// The tree over kWidth neighbouring lanes of a warp; lane 0 has the result.
template <int kWidth>
__device__ __forceinline__ ShardNorm sum_warp(ShardNorm part) {
  for (int distance = 1; distance < kWidth; distance *= 2) {
    part = add(part, {__shfl_xor_sync(0xffffffff, part.sum_sq, distance),
                      __shfl_xor_sync(0xffffffff, part.nonfinite, distance)});
  }
  return part;
}

// The tree over the threads of a block; thread 0 has the result. Called once a kernel.
template <int kBlockThreads>
__device__ __forceinline__ ShardNorm sum_block(ShardNorm part) {
  constexpr int kWarps = kBlockThreads / 32;
  static_assert(kWarps * 32 == kBlockThreads && kWarps <= 32 && (kWarps & (kWarps - 1)) == 0);
  __shared__ ShardNorm warp_sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  part = sum_warp<32>(part);
  if (thread % 32 == 0) warp_sums[thread / 32] = part;
  __syncthreads();
  if (thread >= 32) return part;
  return sum_warp<kWarps>(thread < kWarps ? warp_sums[thread] : ShardNorm{0, 0});
}

template <ComputeType kType>
__global__ void __launch_bounds__(kNormLanes)
    tile_kernel(const ElementOf<kType>* grads, size_t numel, ShardNorm* sums) {
  const ShardNorm tile = sum_block<kNormLanes>(
      norm_lane<kType>(grads, numel, blockIdx.x, static_cast<int>(threadIdx.x)));
  if (threadIdx.x == 0) sums[blockIdx.x] = tile;
}

__global__ void __launch_bounds__(kLevelThreads)
    level_kernel(const ShardNorm* sums, size_t count, ShardNorm* next) {
  const ShardNorm part = sum_block<kLevelThreads>(
      level_thread(sums, count, blockIdx.x, static_cast<int>(threadIdx.x)));
  if (threadIdx.x == 0) next[blockIdx.x] = part;
}

}  // namespace

cudaError_t enqueue_squared_norm(ComputeType type, const void* grads, size_t numel,
                                 ShardNorm* result, void* workspace, cudaStream_t stream) {
  size_t count = TilePart::blocks(numel);
  ShardNorm* sums = count == 1 ? result : static_cast<ShardNorm*>(workspace);
  cudaError_t status = for_type(type, [&](auto type) {
    return enqueue(tile_kernel<type()>, count, kNormLanes, stream,
                   static_cast<const ElementOf<type()>*>(grads), numel, sums);
  });
  while (count > 1 && status == cudaSuccess) {
    const size_t next_count = level_count(count);
    ShardNorm* const next = next_count == 1 ? result : sums + count;
    status = enqueue(level_kernel, next_count, kLevelThreads, stream, sums, count, next);
    sums = next;
    count = next_count;
  }
  return status;
}

}  // namespace elixir::kernels
