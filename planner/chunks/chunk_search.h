#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/chunks/packing.h"
#include "planner/profile.h"

namespace elixir::planner {

// At most this many lengths are tried, evenly spaced. They go from the longest parameter to
// kLongestFactor times it, or to an eighth of the model if that is longer.
inline constexpr int kChunkLengths = 1000;
inline constexpr uint64_t kLongestFactor = 2;
// least_moving_length() ignores lengths whose held_numel exceeds the smallest one by more than this
// share.
inline constexpr double kWorstWaste = 0.1;
// Lengths are divided into this many ranges, equal in their logarithms. Three lengths of each range
// are simulated: the shortest, the one with the least padding and the one that moves least.
// shorter_lengths() are divided into kShorterRanges.
inline constexpr int kLengthRanges = 16;
inline constexpr int kShorterRanges = 6;
// Up to this many lengths per range on average, all are simulated.
inline constexpr size_t kFewInARange = 3;

struct ChunkLength {
  uint64_t numel = 0;
  uint64_t held_numel = 0;  // elements of all chunks of that length, padding included
};

// Ascending. If several lengths pack alike, only the shortest is there.
std::vector<ChunkLength> chunk_lengths(const ModelProfile& profile);

// A length that ignores the few parameters that are far longer than all others, such as one or two
// token embeddings. They would make every chunk and every block as long. Leave out the
// kMostLongParameters longest parameters. If the longest of all is at least kLongestFactor times as
// long as the longest of the rest, the result is the latter's length. Otherwise it is the length of
// the longest of all. Rounded up to kAlignNumel.
inline constexpr size_t kMostLongParameters = 4;
uint64_t ordinary_length(std::vector<uint64_t> numels);

// Lengths below the longest parameter, from ordinary_length() to kLongestFactor times it, or to an
// eighth of the model if that is longer. None is so short that it makes more than about
// kMostShorterChunks chunks. Empty unless the longest parameter is at least kLongestFactor times as
// long as the first of them.
inline constexpr uint64_t kMostShorterChunks = 4096;
inline constexpr int kShorterLengths = 250;
std::vector<ChunkLength> shorter_lengths(const ModelProfile& profile);

// Whether some candidate can run with this packing.
using LengthFits = std::function<bool(const Packing&)>;

std::vector<ChunkLength> lengths_that_fit(const ModelProfile& profile,
                                          const std::vector<ChunkLength>& lengths,
                                          const LengthFits& fits);

// The elements that Belady's misses move over the step's regions, in and out. The cache has as many
// blocks as `budget_bytes` holds, at least those of the largest checkpointed region and at most all
// chunks. Elixir v2 chooses by this cost (arXiv 2212.05339 v2, section 4.1). If even one miss per
// chunk reaches `most`, the result is that lower bound.
double moved_numel(const ModelProfile& profile, const Packing& packing, uint64_t budget_bytes,
                   double most);

// The length that moves least; the smallest on ties. REQUIRES: `lengths` is not empty.
uint64_t least_moving_length(const ModelProfile& profile, const std::vector<ChunkLength>& lengths,
                             uint64_t budget_bytes);

// All of `lengths` if they are few (kFewInARange). Otherwise each range gives the three lengths
// that kLengthRanges names. The ranges divide `all`, which does not depend on memory, so more
// memory does not move them. Ascending.
std::vector<uint64_t> lengths_to_simulate(const ModelProfile& profile,
                                          const std::vector<ChunkLength>& all,
                                          const std::vector<ChunkLength>& lengths,
                                          uint64_t budget_bytes, int ranges = kLengthRanges);

}  // namespace elixir::planner
