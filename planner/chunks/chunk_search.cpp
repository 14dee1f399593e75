#include "planner/chunks/chunk_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"
#include "base/units.h"
#include "planner/cache/fetches.h"

namespace elixir::planner {
namespace {

uint32_t blocks_within(uint64_t budget_bytes, uint64_t chunk_bytes, uint32_t least, uint32_t most) {
  const uint64_t blocks = budget_bytes / chunk_bytes;
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, least, std::max(least, most)));
}

auto least_held(const std::vector<ChunkLength>& lengths) {
  ELIXIR_CHECK(!lengths.empty(), "no length to choose from");
  return std::min_element(
      lengths.begin(), lengths.end(),
      [](const ChunkLength& a, const ChunkLength& b) { return a.held_numel < b.held_numel; });
}

// Chunks of runs by their first one.
uint32_t count_distinct(const std::vector<std::vector<uint32_t>>& uses, const Packing& packing) {
  std::vector<bool> seen(packing.total_chunks());
  uint32_t n = 0;
  for (const auto& chunks : uses) {
    for (const uint32_t chunk : chunks) {
      n += seen[chunk] ? 0 : packing.run[chunk];
      seen[chunk] = true;
    }
  }
  return n;
}

// Those from `first` on, at most `most`.
std::vector<ChunkLength> lengths_between(const ModelProfile& profile, uint64_t first, uint64_t most,
                                         int n_lengths) {
  const std::vector<PackedSize> sizes = packed_sizes(profile);
  const uint64_t last = std::min(
      std::max(kLongestFactor * first, round_up(profile.total_numel() / 8, kAlignNumel)), most);
  const uint64_t stride = std::max(
      kAlignNumel, round_up((last - first) / static_cast<uint64_t>(n_lengths), kAlignNumel));
  std::vector<ChunkLength> lengths;
  for (uint64_t numel = first; numel <= last; numel += stride) {
    const PackedLength packed = packed_length(sizes, numel);
    if (!lengths.empty() && lengths.back().numel == packed.chunk_numel) continue;
    lengths.push_back({packed.chunk_numel, packed.chunks * packed.chunk_numel});
  }
  return lengths;
}

}  // namespace

std::vector<ChunkLength> chunk_lengths(const ModelProfile& profile) {
  uint64_t longest = 0;
  for (const ProfiledParameter& param : profile.params) longest = std::max(longest, param.numel);
  const uint64_t first = round_up(longest, kAlignNumel);
  return lengths_between(profile, first, std::max(first, kMaxParameterNumel), kChunkLengths);
}

uint64_t ordinary_length(std::vector<uint64_t> numels) {
  std::sort(numels.begin(), numels.end(), std::greater<>());
  const uint64_t longest = round_up(numels.empty() ? 0 : numels.front(), kAlignNumel);
  if (numels.size() <= kMostLongParameters) return longest;
  const uint64_t ordinary = round_up(numels[kMostLongParameters], kAlignNumel);
  return longest < kLongestFactor * ordinary ? longest : ordinary;
}

std::vector<ChunkLength> shorter_lengths(const ModelProfile& profile) {
  std::vector<uint64_t> numels;
  for (const ProfiledParameter& param : profile.params) numels.push_back(param.numel);
  if (numels.empty()) return {};
  const uint64_t longest = round_up(*std::max_element(numels.begin(), numels.end()), kAlignNumel);
  const uint64_t least = round_up(profile.total_numel() / kMostShorterChunks, kAlignNumel);
  const uint64_t first = std::max(ordinary_length(std::move(numels)), least);
  if (longest < kLongestFactor * first) return {};
  return lengths_between(profile, first, longest - kAlignNumel, kShorterLengths);
}

std::vector<ChunkLength> lengths_that_fit(const ModelProfile& profile,
                                          const std::vector<ChunkLength>& lengths,
                                          const LengthFits& fits) {
  const std::vector<PackedSize> sizes = packed_sizes(profile);
  std::vector<ChunkLength> fitting;
  for (const ChunkLength& length : lengths) {
    if (fits(pack(sizes, length.numel))) fitting.push_back(length);
  }
  return fitting;
}

double moved_numel(const ModelProfile& profile, const Packing& packing, uint64_t budget_bytes,
                   double most) {
  const std::vector<std::vector<uint32_t>> regions = chunks_of_regions(profile, packing);
  const double numel = static_cast<double>(packing.chunk_numel);
  // Every chunk that is used comes in once at least.
  const double least = 2.0 * count_distinct(regions, packing) * numel;
  if (least >= most) return least;
  const LeastBlocks needed = least_blocks(regions, packing);
  const uint64_t long_bytes = needed.long_blocks * packing.long_numel() * profile.dtype_bytes();
  const CacheBlocks blocks{
      .blocks = blocks_within(budget_bytes - std::min(budget_bytes, long_bytes),
                              packing.chunk_numel * profile.dtype_bytes(),
                              std::max(needed.blocks, 1u), packing.total_chunks()),
      .long_blocks = needed.long_blocks,
      .is_long = packing.is_long};
  UseList uses;
  uses.reserve(regions.size(), regions.size());
  for (const std::vector<uint32_t>& chunks : regions) uses.add(chunks);
  const Result<std::vector<CacheFetch>> fetches = schedule_fetches(uses, blocks);
  ELIXIR_CHECK(fetches.ok(), "with blocks for every operator: {}", fetches.status().message());
  uint64_t moved = 0;
  for (const CacheFetch& fetch : *fetches) moved += 2 * packing.run[fetch.chunk];
  return static_cast<double>(moved) * numel;
}

uint64_t least_moving_length(const ModelProfile& profile, const std::vector<ChunkLength>& lengths,
                             uint64_t budget_bytes) {
  ELIXIR_CHECK(!lengths.empty(), "there is no length of a chunk to choose");
  const std::vector<PackedSize> sizes = packed_sizes(profile);
  const double most_held = (1 + kWorstWaste) * static_cast<double>(least_held(lengths)->held_numel);
  uint64_t best_numel = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const ChunkLength& length : lengths) {
    if (static_cast<double>(length.held_numel) > most_held) continue;
    const double moved = moved_numel(profile, pack(sizes, length.numel), budget_bytes, least);
    if (moved >= least) continue;
    least = moved;
    best_numel = length.numel;
  }
  ELIXIR_CHECK(best_numel != 0, "none of {} lengths moves least", lengths.size());
  return best_numel;
}

std::vector<uint64_t> lengths_to_simulate(const ModelProfile& profile,
                                          const std::vector<ChunkLength>& all,
                                          const std::vector<ChunkLength>& lengths,
                                          uint64_t budget_bytes, int ranges) {
  std::vector<uint64_t> chosen;
  if (lengths.size() <= kFewInARange * static_cast<size_t>(ranges)) {
    for (const ChunkLength& length : lengths) chosen.push_back(length.numel);
    return chosen;
  }
  const double first = std::log(static_cast<double>(all.front().numel));
  const double last = std::log(static_cast<double>(all.back().numel));
  const double width = std::max((last - first) / ranges, 1e-9);
  std::vector<ChunkLength> range;
  auto next = lengths.begin();
  for (int i = 1; i <= ranges && next != lengths.end(); ++i) {
    range.clear();
    const bool final_range = i == ranges;
    while (next != lengths.end() &&
           (final_range || std::log(static_cast<double>(next->numel)) < first + i * width)) {
      range.push_back(*next++);
    }
    if (range.empty()) continue;
    std::vector<uint64_t> promising = {range.front().numel, least_held(range)->numel,
                                       least_moving_length(profile, range, budget_bytes)};
    std::sort(promising.begin(), promising.end());
    promising.erase(std::unique(promising.begin(), promising.end()), promising.end());
    chosen.insert(chosen.end(), promising.begin(), promising.end());
  }
  return chosen;
}

}  // namespace elixir::planner
