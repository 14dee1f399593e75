// norm_work.h for every block and thread of a launch. A block adds up in its shared memory, and
// then to the result: integers, whose order does not matter.

#include <algorithm>

#include "kernels/enqueue.h"
#include "kernels/norm_work.h"

namespace elixir::kernels {
namespace {

// Enough of them to fill any device; each takes every so-many-th turn.
constexpr size_t kMostBlocks = 2048;
constexpr unsigned kAllLanes = 0xffffffff;

// The words of a NormSum, in shared memory.
constexpr int kWords = kNormLimbs + 1;
static_assert(sizeof(NormSum) == kWords * sizeof(uint64_t));
using Word = unsigned long long;
static_assert(sizeof(Word) == sizeof(uint64_t));

__device__ __forceinline__ LaneSums from_thread_xor(const LaneSums& sums, int distance) {
  LaneSums theirs;
  for (int i = 0; i < kVectorNumel; ++i) {
    theirs.lane[i] = __shfl_xor_sync(kAllLanes, sums.lane[i], distance);
  }
  return theirs;
}

__device__ __forceinline__ double sum_leaf(LaneSums sums) {
  sums = add(sums, from_thread_xor(sums, 2));
  sums = add(sums, from_thread_xor(sums, 1));
  return add_up(sums);
}

// The sum of this thread's leaf of a turn.
template <ComputeType kType>
__device__ __forceinline__ double take_turn(const ElementOf<kType>* values, size_t numel,
                                            size_t turn, int thread, uint32_t& nonfinite) {
  double mine = 0;
  // Two leaves at a time: bandwidth is bytes in flight.
  for (int i = 0; i < kLeafThreads; i += 2) {
    const LeafPart parts[2] = {
        load_leaf<kType>(values, numel, leaf_begin(turn, thread, i), thread),
        load_leaf<kType>(values, numel, leaf_begin(turn, thread, i + 1), thread)};
    for (int k = 0; k < 2; ++k) {
      const double leaf = sum_leaf(square_lanes(parts[k], nonfinite));
      if (thread % kLeafThreads == i + k) mine = leaf;
    }
  }
  return mine;
}

__device__ __forceinline__ void add_window(Word* sums, const LimbWindow& window) {
  for (int i = 0; i < 3; ++i) {
    if (window.part[i] != 0) atomicAdd(&sums[window.limb + i], window.part[i]);
  }
}

__device__ __forceinline__ uint64_t sum_warp(uint64_t value) {
  for (int distance = 1; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// The windows of a warp, those of the same limbs at once: there are few different ones.
__device__ __forceinline__ void add_windows(Word* sums, const LimbWindow& window, int thread) {
  for (unsigned left = kAllLanes; left != 0;) {
    const int limb = __shfl_sync(kAllLanes, window.limb, __ffs(static_cast<int>(left)) - 1);
    const bool among = window.limb == limb;
    LimbWindow total;
    total.limb = limb;
    for (int i = 0; i < 3; ++i) total.part[i] = sum_warp(among ? window.part[i] : 0);
    if (thread % 32 == 0) add_window(sums, total);
    left &= ~__ballot_sync(kAllLanes, among);
  }
}

template <ComputeType kType>
__global__ void __launch_bounds__(kNormThreads)
    norm_kernel(const ElementOf<kType>* values, size_t numel, Word* result) {
  __shared__ Word sums[kWords];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kWords) sums[thread] = 0;
  __syncthreads();
  LimbWindow window;
  uint32_t nonfinite = 0;
  const size_t turns = norm_turns(numel);
  for (size_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const double leaf = take_turn<kType>(values, numel, turn, thread, nonfinite);
    add_leaf(window, leaf, [&](const LimbWindow& full) { add_window(sums, full); });
  }
  __syncwarp();
  add_windows(sums, window, thread);
  const uint32_t warp_nonfinite = __reduce_add_sync(kAllLanes, nonfinite);
  if (thread % 32 == 0 && warp_nonfinite != 0) {
    atomicAdd(&sums[kNormLimbs], Word{warp_nonfinite});
  }
  __syncthreads();
  if (thread < kWords && sums[thread] != 0) atomicAdd(&result[thread], sums[thread]);
}

}  // namespace

cudaError_t enqueue_squared_norm(ComputeType type, const void* values, size_t numel,
                                 NormSum* result, cudaStream_t stream) {
  const cudaError_t outcome = cudaMemsetAsync(result, 0, sizeof *result, stream);
  if (outcome != cudaSuccess || numel == 0) return outcome;
  const size_t blocks = std::min(norm_turns(numel), kMostBlocks);
  return for_type(type, [&](auto type) {
    return enqueue(norm_kernel<type()>, blocks, kNormThreads, stream,
                   static_cast<const ElementOf<type()>*>(values), numel,
                   reinterpret_cast<Word*>(result));
  });
}

}  // namespace elixir::kernels
