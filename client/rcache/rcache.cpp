#include "client/rcache/rcache.h"

#include "base/check.h"

namespace elixir {

RCache::RCache(uint32_t n_chunks, uint32_t n_blocks)
    : blocks_(n_blocks), block_of_(n_chunks, kNone), uses_(n_chunks) {}

std::optional<RCache::Placement> RCache::pin(uint32_t chunk) {
  uses_.touch(chunk);
  uint32_t index = block_of_[chunk];
  const bool hit = index != kNone;
  uint32_t evicted = kNone;
  if (!hit) {
    index = find_room();
    if (index == kNone) return std::nullopt;
    evicted = blocks_[index].chunk;
    if (evicted != kNone) {
      block_of_[evicted] = kNone;
      ++evictions_;
    }
    blocks_[index].chunk = chunk;
    block_of_[chunk] = index;
    ++gathers_;
  } else {
    ++hits_;
  }
  Block& block = blocks_[index];
  if (block.pins++ == 0) ++n_pinned_;
  block.last_use = ++clock_;
  return Placement{index, hit, evicted};
}

void RCache::unpin(uint32_t chunk) {
  Block& block = blocks_[block_of_[chunk]];
  ELIXIR_CHECK(block.chunk == chunk && block.pins > 0, "unpin of chunk {}, which is not pinned",
               chunk);
  if (--block.pins == 0) --n_pinned_;
}

void RCache::abandon(uint32_t chunk) {
  unpin(chunk);
  Block& block = blocks_[block_of_[chunk]];
  ELIXIR_CHECK(block.pins == 0, "chunk {} is abandoned while an operator uses it", chunk);
  block.chunk = kNone;
  block_of_[chunk] = kNone;
}

bool RCache::end_step() {
  ELIXIR_CHECK(n_pinned_ == 0, "{} blocks are pinned at the end of a step", n_pinned_);
  for (Block& block : blocks_) {
    if (block.chunk != kNone) block_of_[block.chunk] = kNone;
    block.chunk = kNone;
  }
  return uses_.end_step();
}

uint32_t RCache::find_room() {
  uint32_t best = kNone;
  for (uint32_t i = 0; i < n_blocks(); ++i) {
    if (blocks_[i].chunk == kNone) return i;
    if (blocks_[i].pins > 0) continue;
    if (best == kNone || better_victim(blocks_[i], blocks_[best])) best = i;
  }
  return best;
}

bool RCache::better_victim(const Block& a, const Block& b) const {
  if (uses_.following()) {
    const uint64_t next_a = uses_.next_use(a.chunk), next_b = uses_.next_use(b.chunk);
    if (next_a != next_b) return next_a > next_b;
  }
  return a.last_use < b.last_use;
}

}  // namespace elixir
