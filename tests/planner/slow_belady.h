#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace elixir::test {

// One chunk to bring into a block, and when.
struct Fetch {
  uint32_t chunk = 0;
  uint32_t block = 0;
  uint64_t needed_at = 0;  // the use (an index of the order) for which it must be there
  // From here on the block can take it: the uses before this one are over for the chunk it held,
  // which is not used again before needed_at.
  uint64_t room_from = 0;
};

// planner::schedule_uses, looking through all blocks for each victim.
//
// `order`: the uses of a step; `others_pinned`: by use, how many of the chunks used last must stay
// where they are meanwhile. `held`: by block, the chunk that is there at the start, or UINT32_MAX;
// empty: no block holds anything. Empty where the blocks do not suffice for one of the uses. Where
// several chunks are never used again, the one that was used first loses its block.
std::vector<Fetch> slow_schedule(std::span<const uint32_t> order,
                                 std::span<const uint32_t> others_pinned, uint32_t n_chunks,
                                 uint32_t n_blocks, std::span<const uint32_t> held = {});

}  // namespace elixir::test
