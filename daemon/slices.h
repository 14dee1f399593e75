#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shm/shape.h"

namespace elixir::daemon {

// Elements [begin, begin + numel) of one rank's shard of one chunk. A worker takes one at a time.
struct Slice {
  uint32_t chunk;
  uint32_t rank;   // on this node
  uint64_t begin;  // in the shard
  uint64_t numel;  // > 0
};

// All slices of a job, cut once at attach. Each worker group (one per NUMA node) has its own list,
// in the order of chunks, which is the order of next use. Every chunk has at least one slice.
struct SliceTable {
  std::vector<std::vector<Slice>> by_group;
  // The index of a chunk's first slice in by_group[group]: chunk_first[group][chunk]. One more
  // entry closes the last chunk. Chunks are counted as elixird keeps them: those placed on the CPU,
  // then the frozen ones.
  std::vector<std::vector<uint32_t>> chunk_first;
  std::vector<uint32_t> slices_of_chunk;  // over all groups
};

// The ranks of this node: the shard that each keeps, and the group that updates it.
struct LocalRanks {
  std::span<const uint32_t> shard;
  std::span<const uint32_t> group;
};

// `used_numel`: by chunk placed on the CPU, elements up to the end of its last parameter. A frozen
// chunk is cut whole. `slice_numel` is rounded up to whole cache lines of every array.
SliceTable cut_slices(const shm::Shape& shape, std::span<const uint64_t> used_numel,
                      uint64_t slice_numel, const LocalRanks& ranks, uint32_t n_groups);

// The most threads of each group that may work on a job that asked for `limit` threads in all (0:
// all, now and later). A group with 0 gets no slices, so choose another one for a rank.
std::vector<uint32_t> group_limits(uint32_t n_groups, uint32_t limit);

}  // namespace elixir::daemon
