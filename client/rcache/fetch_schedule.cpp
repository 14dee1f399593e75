#include "client/rcache/fetch_schedule.h"

#include <algorithm>

namespace elixir {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr uint64_t kNever = UINT64_MAX;

// By use, when its chunk is used next.
std::vector<uint64_t> next_uses(std::span<const uint32_t> order, uint32_t n_chunks) {
  std::vector<uint64_t> next(order.size()), seen(n_chunks, kNever);
  for (size_t i = order.size(); i-- > 0;) {
    next[i] = seen[order[i]];
    seen[order[i]] = i;
  }
  return next;
}

// The blocks while the step is gone through.
class Blocks {
 public:
  Blocks(uint32_t n_chunks, uint32_t n_blocks) : blocks_(n_blocks), block_of_(n_chunks, kNone) {}

  bool holds(uint32_t chunk) const { return block_of_[chunk] != kNone; }

  void use(uint32_t chunk, uint64_t position, uint64_t next_use) {
    Block& block = blocks_[block_of_[chunk]];
    block.last_use = position;
    block.next_use = next_use;
  }

  // The first empty block, else that of the chunk whose next use is farthest; kNone: all of them
  // are held since `held_since`.
  uint32_t find_room(uint64_t held_since) const {
    uint32_t best = kNone;
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      if (block.chunk == kNone) return i;
      if (block.last_use >= held_since) continue;
      if (best == kNone || farther(block, blocks_[best])) best = i;
    }
    return best;
  }

  // Puts the chunk into the block. Returns the first position at which it had room.
  uint64_t replace(uint32_t index, uint32_t chunk) {
    Block& block = blocks_[index];
    const uint64_t room_from = block.chunk == kNone ? 0 : block.last_use + 1;
    if (block.chunk != kNone) block_of_[block.chunk] = kNone;
    block.chunk = chunk;
    block_of_[chunk] = index;
    return room_from;
  }

 private:
  struct Block {
    uint32_t chunk = kNone;
    uint64_t last_use = 0, next_use = kNever;
  };

  static bool farther(const Block& a, const Block& b) {
    return a.next_use != b.next_use ? a.next_use > b.next_use : a.last_use < b.last_use;
  }

  std::vector<Block> blocks_;
  std::vector<uint32_t> block_of_;
};

}  // namespace

std::vector<Fetch> schedule_fetches(std::span<const uint32_t> order,
                                    std::span<const uint32_t> others_pinned, uint32_t n_chunks,
                                    uint32_t n_blocks) {
  const std::vector<uint64_t> next = next_uses(order, n_chunks);
  Blocks blocks(n_chunks, n_blocks);
  std::vector<Fetch> fetches;
  for (uint64_t i = 0; i < order.size(); ++i) {
    const uint32_t chunk = order[i];
    if (!blocks.holds(chunk)) {
      const uint64_t held_since = i - std::min<uint64_t>(i, others_pinned[i]);
      const uint32_t block = blocks.find_room(held_since);
      if (block == kNone) return {};
      fetches.push_back({chunk, block, i, blocks.replace(block, chunk)});
    }
    blocks.use(chunk, i, next[i]);
  }
  return fetches;
}

}  // namespace elixir
