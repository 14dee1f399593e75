#pragma once

// Belady's choices for a whole step: which chunk goes into which block, and when. The planner makes
// them from a profile's operators, the runtime from its own record (client/rcache).

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace elixir::planner {

inline constexpr uint32_t kNone = UINT32_MAX;

// The chunks that each operator needs, in the order of operators.
class UseList {
 public:
  void reserve(size_t operators, size_t uses);
  // Adds the chunks of one operator. A second mention of a chunk is dropped.
  void add(std::span<const uint32_t> chunks);

  uint32_t n_operators() const { return static_cast<uint32_t>(ends_.size()); }
  uint32_t begin(uint32_t op) const { return op == 0 ? 0 : ends_[op - 1]; }
  uint32_t end(uint32_t op) const { return ends_[op]; }
  std::span<const uint32_t> chunks() const { return chunks_; }

 private:
  std::vector<uint32_t> chunks_, ends_;
};

// Blocks of two lengths, each with chunks of its own. An ordinary block holds one chunk. A long
// block holds a run of chunks with one long parameter, and the run's first chunk stands for all of
// it. Long blocks are numbered after the others.
struct CacheBlocks {
  uint32_t blocks = 0;
  uint32_t long_blocks = 0;
  std::span<const uint8_t> is_long = {};  // by chunk; chunks beyond its end are not

  uint32_t all() const { return blocks + long_blocks; }
  bool in_long_block(uint32_t chunk) const { return chunk < is_long.size() && is_long[chunk] != 0; }
};

// One chunk to bring into a block. A place in the step is a use (schedule_uses) or an operator
// (schedule_fetches).
struct CacheFetch {
  uint32_t chunk = 0;
  uint32_t block = 0;
  uint32_t needed_at = 0;  // the place that needs the chunk
  // From this place on the block can take the chunk. The former chunk's last use before needed_at
  // is then over.
  uint32_t room_from = 0;
  uint32_t evicted = kNone;      // the chunk that loses the block
  bool evicted_returns = false;  // the evicted chunk is used again in this step
};

// All fetches of a step by Belady's rule, in the order in which they are needed. No other choice of
// victims fetches less (Belady 1966). A fetch may start as soon as its block has room. This is the
// conservative strategy of Cao et al. (1995, "Implementation and performance of integrated
// application-controlled file caching, prefetching and disk scheduling"). It brings chunks early
// and adds no fetch.
// Note: docs/design/elixir.md, "conservative fetching".
//
// `order`: the chunk of each use. `others_pinned`: for each use, the number of uses directly before
// it whose chunks must stay in their blocks. It exceeds the number of the previous use by one at
// most. With long blocks, both rules count only uses of the same kind of block. `held`: for each
// block, the chunk in it at the start, or kNone. Blocks beyond its end are empty.
//
// The victim is the chunk whose next use is farthest away. If several are never used again, it is
// the one whose last use came first. The list is empty if the blocks do not suffice for some use.
// O(uses * log uses).
std::vector<CacheFetch> schedule_uses(std::span<const uint32_t> order,
                                      std::span<const uint32_t> others_pinned,
                                      const CacheBlocks& blocks,
                                      std::span<const uint32_t> held = {});
inline std::vector<CacheFetch> schedule_uses(std::span<const uint32_t> order,
                                             std::span<const uint32_t> others_pinned,
                                             uint32_t blocks, std::span<const uint32_t> held = {}) {
  return schedule_uses(order, others_pinned, CacheBlocks{.blocks = blocks}, held);
}

// Like schedule_uses(), for operators that each pin all of their chunks at once. Places are
// operators. Returns kInvalidArgument if an operator needs more chunks than there are blocks, or if
// `held` is longer than the list of blocks.
Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, const CacheBlocks& blocks,
                                                 std::span<const uint32_t> held = {});
inline Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, uint32_t blocks,
                                                        std::span<const uint32_t> held = {}) {
  return schedule_fetches(uses, CacheBlocks{.blocks = blocks}, held);
}

// The chunks in the blocks after these fetches, in the order of blocks. Empty blocks are left out.
std::vector<uint32_t> held_after(std::span<const CacheFetch> fetches,
                                 std::span<const uint32_t> held);

}  // namespace elixir::planner
