#pragma once

// The rCache's misses over a step, without the rCache. Belady 1966: the victim is the chunk whose
// next use is farthest; no choice of victims misses less. Here several chunks may be needed at once
// and stay while they are.

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace elixir::planner {

struct CacheCount {
  uint64_t misses = 0;
  uint64_t moved = 0;  // 2 * misses: every chunk that comes in goes out again
};

// `steps`: the distinct chunks that each operator needs, in order. The cache begins empty and is
// empty in the end. kInvalidArgument where a step needs more chunks than there are blocks: it is
// named, with what it needs. O(uses * log blocks), chunk numbers may be any.
Result<CacheCount> simulate_cache(const std::vector<std::vector<uint32_t>>& steps, uint32_t blocks);

}  // namespace elixir::planner
