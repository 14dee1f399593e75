#pragma once

// Belady's choices for a whole step: which chunk goes into which block, and when. The planner makes
// them of a profile's operators, the runtime of what it has recorded (client/rcache).

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace elixir::planner {

inline constexpr uint32_t kNone = UINT32_MAX;

// Which chunks the operators need, one operator behind the other.
class UseList {
 public:
  void reserve(size_t operators, size_t uses);
  // Chunks of one operator; a second mention is dropped.
  void add(std::span<const uint32_t> chunks);

  uint32_t n_operators() const { return static_cast<uint32_t>(ends_.size()); }
  uint32_t begin(uint32_t op) const { return op == 0 ? 0 : ends_[op - 1]; }
  uint32_t end(uint32_t op) const { return ends_[op]; }
  std::span<const uint32_t> chunks() const { return chunks_; }

 private:
  std::vector<uint32_t> chunks_, ends_;
};

// Blocks of two lengths, each with chunks of its own: of one chunk, and of a run of chunks that
// hold one long parameter, where the run's first chunk stands for all of it. Long blocks are
// numbered behind the others.
struct CacheBlocks {
  uint32_t blocks = 0;
  uint32_t long_blocks = 0;
  std::span<const uint8_t> is_long = {};  // by chunk; those beyond its end are not

  uint32_t all() const { return blocks + long_blocks; }
  bool in_long_block(uint32_t chunk) const { return chunk < is_long.size() && is_long[chunk] != 0; }
};

// One chunk to bring into a block. Places in a step are operators, or uses, as the step was given.
struct CacheFetch {
  uint32_t chunk = 0;
  uint32_t block = 0;
  uint32_t needed_at = 0;  // the place for which it must be there
  // From here on the block can take it: what used the chunk it held before is over, and that chunk
  // is not used again before needed_at.
  uint32_t room_from = 0;
  uint32_t evicted = kNone;      // the chunk that loses the block
  bool evicted_returns = false;  // it is used again in this step
};

// All fetches of a step, by Belady's rule, in the order in which they are needed: as few as any
// choice of victims has (Belady 1966). Fetching each as soon as its block has room is the
// conservative strategy of Cao et al. (1995, "Implementation and performance of integrated
// application-controlled file caching, prefetching and disk scheduling"): it brings chunks early
// without one fetch more.
// Note: docs/design/elixir.md, "conservative fetching".
//
// `order`: the chunks of a step's uses; `others_pinned`: by use, how many of the chunks used last
// must stay where they are meanwhile, at most one more than at the use before; with long blocks
// both are among the uses of the same kind of block. `held`: by block, the chunk that is there at
// the start, or kNone; fewer entries than blocks: the others hold nothing. The victim is the chunk
// whose next use is farthest; of those that are never used again, the one that was used first.
// Empty where the blocks do not suffice for one of the uses. O(uses * log uses).
std::vector<CacheFetch> schedule_uses(std::span<const uint32_t> order,
                                      std::span<const uint32_t> others_pinned,
                                      const CacheBlocks& blocks,
                                      std::span<const uint32_t> held = {});
inline std::vector<CacheFetch> schedule_uses(std::span<const uint32_t> order,
                                             std::span<const uint32_t> others_pinned,
                                             uint32_t blocks, std::span<const uint32_t> held = {}) {
  return schedule_uses(order, others_pinned, CacheBlocks{.blocks = blocks}, held);
}

// The same of operators, each of which pins its chunks together; places are operators.
// kInvalidArgument where one needs more chunks than there are blocks.
Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, const CacheBlocks& blocks,
                                                 std::span<const uint32_t> held = {});
inline Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, uint32_t blocks,
                                                        std::span<const uint32_t> held = {}) {
  return schedule_fetches(uses, CacheBlocks{.blocks = blocks}, held);
}

// What the blocks hold after these fetches.
std::vector<uint32_t> held_after(std::span<const CacheFetch> fetches,
                                 std::span<const uint32_t> held);

}  // namespace elixir::planner
