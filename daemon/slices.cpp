#include "daemon/slices.h"

#include <algorithm>
#include <utility>

namespace elixir::daemon {

std::vector<std::vector<GroupRun>> group_runs(const shm::Shape& shape,
                                              std::span<const shm::ParameterPlace> places) {
  std::vector<const shm::ParameterPlace*> sorted;
  for (const shm::ParameterPlace& place : places) {
    if (place.chunk < shape.n_chunks) sorted.push_back(&place);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(a->chunk, a->offset) < std::pair(b->chunk, b->offset);
  });
  // A chunk without parameters counts as one aligned piece, so that it too is completed by a slice.
  std::vector<std::vector<GroupRun>> chunks(shape.n_chunks, {{0, shm::kAlignNumel, 0}});
  const shm::ParameterPlace* before = nullptr;
  for (const shm::ParameterPlace* place : sorted) {
    std::vector<GroupRun>& runs = chunks[place->chunk];
    const bool first = before == nullptr || before->chunk != place->chunk;
    if (first) {
      runs.back() = {0, 0, place->group};
    } else if (runs.back().param_group != place->group) {
      runs.back().end = place->offset;  // what lies between belongs to the one before
      runs.push_back({place->offset, 0, place->group});
    }
    runs.back().end = std::max(place->offset + place->numel, first ? shm::kAlignNumel : 0);
    before = place;
  }
  chunks.resize(shape.n_chunks + shape.n_frozen_chunks, {{0, shape.chunk_numel, 0}});
  return chunks;
}

uint32_t count_param_groups(std::span<const shm::ParameterPlace> places) {
  uint32_t greatest = 0;
  for (const shm::ParameterPlace& place : places) greatest = std::max(greatest, place.group);
  return greatest + 1;
}

SliceTable cut_slices(const shm::Shape& shape, std::span<const std::vector<GroupRun>> runs,
                      uint64_t slice_numel, const LocalRanks& ranks, uint32_t n_groups) {
  ELIXIR_CHECK(runs.size() == shape.n_chunks + shape.n_frozen_chunks, "runs of {} chunks of {}",
               runs.size(), shape.n_chunks + shape.n_frozen_chunks);
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
      for (const GroupRun& run : runs[kept]) {
        const uint64_t end = std::min(shape.shard_end(ranks.shard[rank]), run.end);
        for (uint64_t at = std::max(start, run.begin); at < end; at += step) {
          table.by_group[ranks.group[rank]].push_back(
              {chunk, rank, at - start, std::min(step, end - at), run.param_group});
          ++table.slices_of_chunk[kept];
        }
      }
    }
    if (table.slices_of_chunk[kept] > 0) continue;
    // Other nodes have all that is used of it. A slice of padding completes it here.
    table.by_group[ranks.group[0]].push_back({chunk, 0, 0, shm::kShardAlignNumel, 0});
    table.slices_of_chunk[kept] = 1;
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
  ELIXIR_CHECK(!limits.empty(), "no group to spread {} threads over", limit);
  const auto groups = static_cast<uint32_t>(limits.size());
  for (uint32_t group = 0; group < groups; ++group) {
    const uint32_t share = limit / groups + (group < limit % groups ? 1 : 0);
    limits[group] = std::min(limits[group], share);
  }
  return limits;
}

}  // namespace elixir::daemon
