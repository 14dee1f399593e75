#include "tests/planner/slow_belady.h"

#include <algorithm>

namespace elixir::test {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr uint64_t kNever = UINT64_MAX;

struct NextUses {
  std::vector<uint64_t> by_use;  // when its chunk is used next
  std::vector<uint64_t> first;   // by chunk
};
NextUses next_uses(std::span<const uint32_t> order, uint32_t n_chunks) {
  NextUses next{.by_use = std::vector<uint64_t>(order.size()),
                .first = std::vector<uint64_t>(n_chunks, kNever)};
  for (size_t i = order.size(); i-- > 0;) {
    next.by_use[i] = next.first[order[i]];
    next.first[order[i]] = i;
  }
  return next;
}

// The blocks while the step is gone through.
class Blocks {
 public:
  Blocks(uint32_t n_chunks, uint32_t n_blocks) : blocks_(n_blocks), block_of_(n_chunks, kNone) {}

  // From before the step.
  void hold(uint32_t index, uint32_t chunk, uint64_t next_use) {
    blocks_[index] = {.chunk = chunk, .next_use = next_use};
    block_of_[chunk] = index;
  }

  bool holds(uint32_t chunk) const { return block_of_[chunk] != kNone; }

  void use(uint32_t chunk, uint64_t position, uint64_t next_use) {
    ELIXIR_CHECK(holds(chunk), "chunk {} is used and no block holds it", chunk);
    Block& block = blocks_[block_of_[chunk]];
    block.over_from = position + 1;
    block.next_use = next_use;
  }

  // The first empty block, else that of the chunk whose next use is farthest; kNone: all of them
  // are held since `held_since`.
  uint32_t find_room(uint64_t held_since) const {
    uint32_t best = kNone;
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      if (block.chunk == kNone) return i;
      if (block.over_from > held_since) continue;
      if (best == kNone || farther(block, blocks_[best])) best = i;
    }
    return best;
  }

  // Puts the chunk into the block. Returns the first position at which it had room.
  uint64_t replace(uint32_t index, uint32_t chunk) {
    Block& block = blocks_[index];
    const uint64_t room_from = block.chunk == kNone ? 0 : block.over_from;
    if (block.chunk != kNone) block_of_[block.chunk] = kNone;
    block.chunk = chunk;
    block_of_[chunk] = index;
    return room_from;
  }

 private:
  struct Block {
    uint32_t chunk = kNone;
    uint64_t over_from = 0;  // behind its last use; 0: it has not been used
    uint64_t next_use = kNever;
  };

  static bool farther(const Block& a, const Block& b) {
    return a.next_use != b.next_use ? a.next_use > b.next_use : a.over_from < b.over_from;
  }

  std::vector<Block> blocks_;
  std::vector<uint32_t> block_of_;
};

}  // namespace

std::vector<Fetch> slow_schedule(std::span<const uint32_t> order,
                                 std::span<const uint32_t> others_pinned, uint32_t n_chunks,
                                 uint32_t n_blocks, std::span<const uint32_t> held) {
  ELIXIR_CHECK(order.size() == others_pinned.size() && held.size() <= n_blocks,
               "{} uses with {} counts of others, {} of {} blocks held", order.size(),
               others_pinned.size(), held.size(), n_blocks);
  const NextUses next = next_uses(order, n_chunks);
  Blocks blocks(n_chunks, n_blocks);
  for (uint32_t i = 0; i < held.size(); ++i) {
    if (held[i] != kNone) blocks.hold(i, held[i], next.first[held[i]]);
  }
  std::vector<Fetch> fetches;
  for (uint64_t i = 0; i < order.size(); ++i) {
    const uint32_t chunk = order[i];
    if (!blocks.holds(chunk)) {
      const uint64_t held_since = i - std::min<uint64_t>(i, others_pinned[i]);
      const uint32_t block = blocks.find_room(held_since);
      if (block == kNone) return {};
      fetches.push_back({chunk, block, i, blocks.replace(block, chunk)});
    }
    blocks.use(chunk, i, next.by_use[i]);
  }
  return fetches;
}

}  // namespace elixir::test
