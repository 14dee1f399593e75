#pragma once

// Counts the rCache's misses over a step without running one. Belady's rule (1966) evicts the chunk
// whose next use is farthest away, and no other rule misses less. Here an operator may need several
// chunks at once. They stay until it ends.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace elixir::planner {

struct CacheCount {
  uint64_t misses = 0;
  uint64_t moved = 0;  // 2 * misses: every chunk that comes in goes out again
};

// `steps`: the distinct chunks that each operator needs, in order. The cache begins and ends empty.
// Returns kInvalidArgument, with the step and its need, if a step needs more chunks than there are
// blocks. O(uses * log uses). Chunk numbers may have any value.
Result<CacheCount> simulate_cache(const std::vector<std::vector<uint32_t>>& steps, uint32_t blocks);

}  // namespace elixir::planner
