#include "daemon/slices.h"

#include <algorithm>

namespace elixir::daemon {

std::vector<uint64_t> used_numel(const shm::Shape& shape,
                                 std::span<const shm::ParameterPlace> places) {
  // A chunk without parameters counts as one aligned piece, so that it too is completed by a slice.
  std::vector<uint64_t> used(shape.n_chunks, shm::kAlignNumel);
  for (const shm::ParameterPlace& place : places) {
    if (place.chunk >= shape.n_chunks) continue;
    used[place.chunk] = std::max(used[place.chunk], place.offset + place.numel);
  }
  return used;
}

SliceTable cut_slices(const shm::Shape& shape, std::span<const uint64_t> used_numel,
                      uint64_t slice_numel, const LocalRanks& ranks, uint32_t n_groups) {
  const uint64_t step = round_up(std::max<uint64_t>(slice_numel, 1), shm::kShardAlignNumel);
  SliceTable table;
  table.by_group.resize(n_groups);
  table.chunk_first.resize(n_groups);
  table.slices_of_chunk.assign(shape.n_chunks, 0);
  for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) {
    for (uint32_t group = 0; group < n_groups; ++group) {
      table.chunk_first[group].push_back(static_cast<uint32_t>(table.by_group[group].size()));
    }
    for (uint32_t rank = 0; rank < ranks.shard.size(); ++rank) {
      const uint64_t start = shape.shard_begin(ranks.shard[rank]);
      const uint64_t end = std::min(shape.shard_end(ranks.shard[rank]), used_numel[chunk]);
      for (uint64_t at = start; at < end; at += step) {
        table.by_group[ranks.group[rank]].push_back(
            {chunk, rank, at - start, std::min(step, end - at)});
        ++table.slices_of_chunk[chunk];
      }
    }
    if (table.slices_of_chunk[chunk] > 0) continue;
    // Other nodes have all that is used of it. A slice of padding completes it here.
    table.by_group[ranks.group[0]].push_back({chunk, 0, 0, shm::kShardAlignNumel});
    table.slices_of_chunk[chunk] = 1;
  }
  for (uint32_t group = 0; group < n_groups; ++group) {
    table.chunk_first[group].push_back(static_cast<uint32_t>(table.by_group[group].size()));
  }
  return table;
}

uint64_t updated_numel(const shm::Shape& shape, std::span<const shm::ParameterPlace> places,
                       std::span<const uint32_t> shards) {
  uint64_t numel = 0;
  for (const shm::ParameterPlace& place : places) {
    if (place.chunk >= shape.n_chunks) continue;
    for (const uint32_t shard : shards) {
      const uint64_t begin = std::max(place.offset, shape.shard_begin(shard));
      const uint64_t end = std::min(place.offset + place.numel, shape.shard_end(shard));
      if (begin < end) numel += end - begin;
    }
  }
  return numel;
}

std::vector<uint32_t> group_limits(std::span<const uint32_t> threads_of_group, uint32_t limit) {
  std::vector<uint32_t> limits(threads_of_group.begin(), threads_of_group.end());
  if (limit == 0) return limits;
  const auto groups = static_cast<uint32_t>(limits.size());
  for (uint32_t group = 0; group < groups; ++group) {
    const uint32_t share = limit / groups + (group < limit % groups ? 1 : 0);
    limits[group] = std::min(limits[group], share);
  }
  return limits;
}

}  // namespace elixir::daemon
