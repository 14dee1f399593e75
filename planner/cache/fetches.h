#pragma once

// Belady's choices for a whole step: which chunk goes into which block, and when. The runtime makes
// the same ones from what it has recorded (client/rcache/fetch_schedule.h).

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

// One chunk to bring into a block.
struct CacheFetch {
  uint32_t chunk = 0;
  uint32_t block = 0;
  uint32_t needed_at = 0;    // the operator
  uint32_t room_from = 0;    // the operator that finds the block free, if those before it are over
  uint32_t evicted = kNone;  // the chunk that loses the block
  bool evicted_returns = false;  // it is used again in this step
};

// All fetches of a step that begins with blocks that hold `held`, distinct chunks, in the order in
// which they are needed. The victim is the chunk whose next use is farthest; of those that are
// never used again, the one that was used first. kInvalidArgument where an operator needs more
// chunks than there are blocks. O(uses * log uses).
Result<std::vector<CacheFetch>> schedule_fetches(const UseList& uses, uint32_t blocks,
                                                 std::span<const uint32_t> held = {});

// What the blocks hold after these fetches.
std::vector<uint32_t> held_after(std::span<const CacheFetch> fetches,
                                 std::span<const uint32_t> held);

}  // namespace elixir::planner
