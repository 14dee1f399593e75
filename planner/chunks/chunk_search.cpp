#include "planner/chunks/chunk_search.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/units.h"
#include "planner/cache/belady.h"

namespace elixir::planner {
namespace {

struct Length {
  uint64_t numel = 0;
  uint64_t held_numel = 0;  // by all chunks of that length
};

// Lengths in ascending order, without those that waste much more than the best.
std::vector<Length> lengths_of(std::span<const PackedSize> sizes, uint64_t model_numel) {
  uint64_t longest = 0;
  for (const PackedSize& size : sizes) longest = std::max(longest, size.numel);
  const uint64_t first = round_up(longest, kAlignNumel);
  const uint64_t last = std::max(kLongestFactor * first, round_up(model_numel / 8, kAlignNumel));
  const uint64_t stride =
      std::max(kAlignNumel, round_up((last - first) / kChunkLengths, kAlignNumel));
  std::vector<Length> lengths;
  uint64_t least_held = std::numeric_limits<uint64_t>::max();
  for (uint64_t numel = first; numel <= last; numel += stride) {
    lengths.push_back({numel, count_chunks(sizes, numel) * numel});
    least_held = std::min(least_held, lengths.back().held_numel);
  }
  std::erase_if(lengths, [&](const Length& length) {
    return static_cast<double>(length.held_numel) >
           (1 + kWorstWaste) * static_cast<double>(least_held);
  });
  return lengths;
}

uint32_t blocks_within(uint64_t budget_bytes, uint64_t chunk_bytes, uint32_t least, uint32_t most) {
  const uint64_t blocks = budget_bytes / chunk_bytes;
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, least, std::max(least, most)));
}

uint32_t count_distinct(const std::vector<std::vector<uint32_t>>& uses, uint32_t n_chunks) {
  std::vector<bool> seen(n_chunks);
  for (const auto& chunks : uses) {
    for (const uint32_t chunk : chunks) seen[chunk] = true;
  }
  return static_cast<uint32_t>(std::count(seen.begin(), seen.end(), true));
}

}  // namespace

uint64_t search_chunk_numel(const ModelProfile& profile, uint64_t budget_bytes) {
  const std::vector<PackedSize> sizes = packed_sizes(profile);
  uint64_t best_numel = 0;
  double least_moved = std::numeric_limits<double>::infinity();
  for (const Length& length : lengths_of(sizes, profile.total_numel())) {
    const Packing packing = pack(sizes, length.numel);
    const std::vector<std::vector<uint32_t>> uses = chunks_of_regions(profile, packing);
    // Every chunk that is used comes in once at least.
    const double numel = static_cast<double>(length.numel);
    if (2.0 * count_distinct(uses, packing.total_chunks()) * numel >= least_moved) continue;
    size_t least_blocks = 1;
    for (const auto& chunks : uses) least_blocks = std::max(least_blocks, chunks.size());
    const uint32_t blocks =
        blocks_within(budget_bytes, length.numel * profile.dtype_bytes,
                      static_cast<uint32_t>(least_blocks), packing.total_chunks());
    const Result<CacheCount> count = simulate_cache(uses, blocks);
    if (!count.ok()) continue;  // cannot be: there are blocks for every operator
    const double moved = static_cast<double>(count->moved) * numel;
    if (moved >= least_moved) continue;
    least_moved = moved;
    best_numel = length.numel;
  }
  return best_numel;
}

}  // namespace elixir::planner
