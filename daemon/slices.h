#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir::daemon {

// Elements [begin, begin + numel) of one rank's shard of one chunk: what a worker takes at a time.
struct Slice {
  uint32_t chunk;
  uint32_t rank;             // on this node
  uint64_t begin;            // in the shard
  uint64_t numel;            // > 0
  uint32_t param_group = 0;  // of all its parameters
};

// All slices of a job, cut once at attach. Each worker group (one a NUMA node) has its own list, in
// the order of chunks: that of next use. Every chunk has at least one slice.
struct SliceTable {
  std::vector<std::vector<Slice>> by_group;
  // Chunks are counted as elixird keeps them: those placed on the CPU, then the frozen ones.
  // chunk_first[group][chunk]: index of the chunk's first slice in by_group[group]; one more entry
  // closes the last chunk.
  std::vector<std::vector<uint32_t>> chunk_first;
  std::vector<uint32_t> slices_of_chunk;  // over all groups
};

// Elements [begin, end) of a chunk whose parameters are of one group. `begin` and, unless it is the
// last, `end` are multiples of kAlignNumel.
struct GroupRun {
  uint64_t begin, end;
  uint32_t param_group;
};

// By chunk placed on the CPU, then by frozen chunk (whole): what is updated, from its start to the
// end of its last parameter, cut where the group changes.
std::vector<std::vector<GroupRun>> group_runs(const shm::Shape& shape,
                                              std::span<const shm::ParameterPlace> places);

// One more than the greatest group of a parameter.
uint32_t count_param_groups(std::span<const shm::ParameterPlace> places);

// The ranks of this node: which shard each keeps, which group updates it.
struct LocalRanks {
  std::span<const uint32_t> shard;
  std::span<const uint32_t> group;
};

// `slice_numel` is rounded up to whole cache lines of every array.
SliceTable cut_slices(const shm::Shape& shape, std::span<const std::vector<GroupRun>> runs,
                      uint64_t slice_numel, const LocalRanks& ranks, uint32_t n_groups);

// Parameters in the shards of these ranks of chunks placed on the CPU, without padding.
uint64_t updated_numel(const shm::Shape& shape, std::span<const shm::ParameterPlace> places,
                       std::span<const uint32_t> shards);

// How many threads of each group may work on a job that asked for `limit` threads in all (0: all).
// Groups with 0 get no slices: choose among the others.
std::vector<uint32_t> group_limits(std::span<const uint32_t> threads_of_group, uint32_t limit);

}  // namespace elixir::daemon
