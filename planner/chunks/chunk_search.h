#pragma once

#include <cstdint>

#include "planner/chunks/packing.h"
#include "planner/profile.h"

namespace elixir::planner {

// The lengths that are tried: so many, evenly from the longest parameter to kLongestFactor times it
// or, where that is longer, an eighth of the model; those that make more chunks times length than
// the shortest do by kWorstWaste are not looked at further.
inline constexpr int kChunkLengths = 1000;
inline constexpr uint64_t kLongestFactor = 2;
inline constexpr double kWorstWaste = 0.1;

// The chunk length that moves least: Belady misses over the step's chunk sequence, in and out,
// times the length (Elixir, arXiv 2212.05339 v2, section 4.1), with as many blocks as
// `budget_bytes` holds (at least those of the largest checkpointed region, at most all chunks); the
// smallest on ties.
uint64_t search_chunk_numel(const ModelProfile& profile, uint64_t budget_bytes);

}  // namespace elixir::planner
