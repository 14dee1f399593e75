#include "daemon/slices.h"

#include <algorithm>
#include <utility>

namespace elixir::daemon {

SliceTable cut_slices(const shm::Shape& shape, std::span<const uint64_t> used_numel,
                      uint64_t slice_numel, const LocalRanks& ranks, uint32_t n_groups) {
  ELIXIR_CHECK(used_numel.size() == shape.n_chunks, "the ends of {} chunks of {}",
               used_numel.size(), shape.n_chunks);
  ELIXIR_CHECK(ranks.shard.size() == ranks.group.size(), "{} shards in {} groups",
               ranks.shard.size(), ranks.group.size());
  const uint64_t step = round_up(std::max<uint64_t>(slice_numel, 1), shm::kShardAlignNumel);
  SliceTable table;
  table.by_group.resize(n_groups);
  table.chunk_first.resize(n_groups);
  const uint32_t n_kept = shape.n_chunks + shape.n_frozen_chunks;
  table.slices_of_chunk.assign(n_kept, 0);
  for (uint32_t kept = 0; kept < n_kept; ++kept) {
    const uint32_t chunk = kept < shape.n_chunks ? kept : kept + shape.n_gpu_chunks;
    for (uint32_t group = 0; group < n_groups; ++group) {
      table.chunk_first[group].push_back(static_cast<uint32_t>(table.by_group[group].size()));
    }
    for (uint32_t rank = 0; rank < ranks.shard.size(); ++rank) {
      const uint64_t start = shape.shard_begin(ranks.shard[rank]);
      const uint64_t used = kept < shape.n_chunks ? used_numel[kept] : shape.chunk_numel;
      const uint64_t end = std::min(shape.shard_end(ranks.shard[rank]), used);
      for (uint64_t at = start; at < end; at += step) {
        table.by_group[ranks.group[rank]].push_back(
            {chunk, rank, at - start, std::min(step, end - at)});
        ++table.slices_of_chunk[kept];
      }
    }
    if (table.slices_of_chunk[kept] > 0) continue;
    // Other nodes have all that is used of it. A slice of padding completes it here.
    table.by_group[ranks.group[0]].push_back({chunk, 0, 0, shm::kShardAlignNumel});
    table.slices_of_chunk[kept] = 1;
  }
  for (uint32_t group = 0; group < n_groups; ++group) {
    table.chunk_first[group].push_back(static_cast<uint32_t>(table.by_group[group].size()));
  }
  return table;
}

std::vector<uint32_t> group_limits(uint32_t n_groups, uint32_t limit) {
  ELIXIR_CHECK(n_groups > 0, "no group to spread {} threads over", limit);
  std::vector<uint32_t> limits(n_groups, UINT32_MAX);
  for (uint32_t group = 0; limit > 0 && group < n_groups; ++group) {
    limits[group] = limit / n_groups + (group < limit % n_groups ? 1 : 0);
  }
  return limits;
}

}  // namespace elixir::daemon
