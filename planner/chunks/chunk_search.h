#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/chunks/packing.h"
#include "planner/profile.h"

namespace elixir::planner {

// So many lengths are tried, from the longest parameter to kLongestFactor times it or, where that
// is longer, an eighth of the model; as a search takes those, evenly.
inline constexpr int kChunkLengths = 1000;
inline constexpr uint64_t kLongestFactor = 2;
// Lengths that make more chunks times length than the least by this do not move least.
inline constexpr double kWorstWaste = 0.1;
// Lengths that are simulated: of so many ranges, equal in their logarithms, the shortest, the one
// with the least padding and the one that moves least. Of shorter_lengths() in fewer.
inline constexpr int kLengthRanges = 16;
inline constexpr int kShorterRanges = 6;
inline constexpr size_t kFewInARange = 3;  // so many on average are all simulated

struct ChunkLength {
  uint64_t numel = 0;
  uint64_t held_numel = 0;  // by all chunks of that length
};

// Ascending. Of those that pack alike, the shortest.
std::vector<ChunkLength> chunk_lengths(const ModelProfile& profile);

// A few parameters may be far longer than all others: token embeddings, of which there are two at
// most. They would make every chunk, and every block, as long. The length of the longest of the
// others, where no more than kMostLongParameters are kLongestFactor times as long as that or
// longer; else of the longest of all. Rounded up to kAlignNumel.
inline constexpr size_t kMostLongParameters = 4;
uint64_t ordinary_length(std::vector<uint64_t> numels);

// Lengths below the longest parameter: from ordinary_length() to kLongestFactor times it or an
// eighth of the model; no shorter than makes some kMostShorterChunks chunks. Empty where the
// longest is not kLongestFactor times as long.
inline constexpr uint64_t kMostShorterChunks = 4096;
inline constexpr int kShorterLengths = 250;
std::vector<ChunkLength> shorter_lengths(const ModelProfile& profile);

// Whether anything can run with chunks packed so.
using LengthFits = std::function<bool(const Packing&)>;

std::vector<ChunkLength> lengths_that_fit(const ModelProfile& profile,
                                          const std::vector<ChunkLength>& lengths,
                                          const LengthFits& fits);

// The elements that Belady's misses move over the step's regions, in and out, with as many blocks
// as `budget_bytes` holds (at least those of the largest checkpointed region, at most all chunks):
// the cost by which Elixir v2 chooses (arXiv 2212.05339 v2, section 4.1). Not counted to the end
// where it exceeds `most`.
double moved_numel(const ModelProfile& profile, const Packing& packing, uint64_t budget_bytes,
                   double most);

// The length that moves least; the smallest on ties. REQUIRES: there are lengths.
uint64_t least_moving_length(const ModelProfile& profile, const std::vector<ChunkLength>& lengths,
                             uint64_t budget_bytes);

// Of `lengths`: all, where they are few (kFewInARange); else of each of so many ranges of `all`,
// which more memory does not move, those named there. Ascending.
std::vector<uint64_t> lengths_to_simulate(const ModelProfile& profile,
                                          const std::vector<ChunkLength>& all,
                                          const std::vector<ChunkLength>& lengths,
                                          uint64_t budget_bytes, int ranges = kLengthRanges);

}  // namespace elixir::planner
