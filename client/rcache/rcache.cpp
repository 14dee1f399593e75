#include "client/rcache/rcache.h"

#include "base/check.h"

namespace elixir {

RCache::RCache(uint32_t n_chunks, uint32_t n_blocks, uint32_t first_frozen)
    : first_frozen_(first_frozen),
      blocks_(n_blocks),
      block_of_(n_chunks, kNone),
      uses_(n_chunks),
      held_(n_blocks, kNone),
      scheduled_held_(n_blocks, kNone) {}

// The block that holds the chunk.
RCache::Block& RCache::holder(uint32_t chunk) {
  ELIXIR_CHECK(chunk < block_of_.size() && block_of_[chunk] != kNone, "no block holds chunk {}",
               chunk);
  return blocks_[block_of_[chunk]];
}

std::optional<RCache::Placement> RCache::pin(uint32_t chunk) {
  ELIXIR_CHECK(chunk < block_of_.size(), "chunk {} of {}", chunk, block_of_.size());
  uses_.touch(chunk, n_pinned_);
  uint32_t index = block_of_[chunk];
  uint32_t evicted = kNone;
  Presence presence = Presence::kMissing;
  if (index == kNone) {
    index = find_room();
    if (index == kNone) return std::nullopt;
    evicted = take_block(index, chunk);
  } else {
    presence = blocks_[index].fetched ? Presence::kFetched : Presence::kHere;
    if (presence == Presence::kHere) ++hits_;
  }
  Block& block = blocks_[index];
  block.fetched = false;
  if (block.pins++ == 0) ++n_pinned_;
  block.last_use = ++clock_;
  return Placement{index, presence, evicted};
}

bool RCache::unpin(uint32_t chunk) {
  Block& block = holder(chunk);
  ELIXIR_CHECK(block.pins > 0, "unpin of chunk {}, which is not pinned", chunk);
  if (--block.pins > 0) return false;
  --n_pinned_;
  return true;
}

// The chunk's bytes are not there: whoever needs it next fills a block with it.
void RCache::abandon(uint32_t chunk) {
  Block& block = holder(chunk);
  ELIXIR_CHECK(block.pins > 0 || block.fetched, "chunk {} is abandoned after its use", chunk);
  if (block.pins > 0) unpin(chunk);
  ELIXIR_CHECK(block.pins == 0, "chunk {} is abandoned while an operator uses it", chunk);
  block.chunk = kNone;
  block.fetched = false;
  block_of_[chunk] = kNone;
  follows_schedule_ = false;
}

bool RCache::end_step() {
  ELIXIR_CHECK(n_pinned_ == 0, "{} blocks are pinned at the end of a step", n_pinned_);
  check_invariant();
  for (uint32_t i = 0; i < n_blocks(); ++i) {
    Block& block = blocks_[i];
    const bool stays = block.chunk != kNone && block.chunk >= first_frozen_ && !block.fetched;
    held_[i] = stays ? block.chunk : kNone;
    if (stays) continue;
    if (block.chunk != kNone) block_of_[block.chunk] = kNone;
    block.chunk = kNone;
    block.fetched = false;
  }
  const bool departed = uses_.end_step();
  if (uses_.version() != scheduled_version_ || held_ != scheduled_held_) {
    schedule_ = planner::schedule_uses(uses_.order(), uses_.others_pinned(), n_blocks(), held_);
    scheduled_version_ = uses_.version();
    scheduled_held_ = held_;
  }
  next_fetch_ = 0;
  follows_schedule_ = !schedule_.empty();
  return departed;
}

// The chunk takes the block; returns the one that loses it, or kNone.
uint32_t RCache::take_block(uint32_t index, uint32_t chunk) {
  Block& block = blocks_[index];
  ELIXIR_CHECK(block.pins == 0 && block_of_[chunk] == kNone,
               "chunk {} comes into a block in use, or into a second one", chunk);
  const uint32_t evicted = block.chunk;
  if (evicted != kNone) {
    block_of_[evicted] = kNone;
    ++evictions_;
  }
  block.chunk = chunk;
  block_of_[chunk] = index;
  ++gathers_;
  return evicted;
}

void RCache::check_invariant() const {
  uint32_t n_held = 0, n_pinned = 0;
  for (uint32_t i = 0; i < n_blocks(); ++i) {
    const Block& block = blocks_[i];
    const bool free = block.chunk == kNone;
    ELIXIR_CHECK(!free || (block.pins == 0 && !block.fetched), "block {} is free, with {} pins{}",
                 i, block.pins, block.fetched ? ", fetched" : "");
    ELIXIR_CHECK(block.pins == 0 || !block.fetched, "block {} is in use and waits for its first",
                 i);
    ELIXIR_CHECK(free || block_of_[block.chunk] == i, "block {} holds chunk {}, which is in {}", i,
                 block.chunk, free ? kNone : block_of_[block.chunk]);
    n_held += free ? 0 : 1;
    n_pinned += block.pins > 0 ? 1 : 0;
  }
  uint32_t n_placed = 0;
  for (const uint32_t block : block_of_) n_placed += block == kNone ? 0 : 1;
  ELIXIR_CHECK(n_placed == n_held, "{} chunks are in {} blocks", n_placed, n_held);
  ELIXIR_CHECK(n_pinned == n_pinned_, "{} blocks are pinned, counted as {}", n_pinned, n_pinned_);
  ELIXIR_CHECK(next_fetch_ <= schedule_.size(), "fetch {} of {}", next_fetch_, schedule_.size());
}

// ---- by the schedule ----

std::optional<uint32_t> RCache::next_fetch() const {
  if (!scheduled() || next_fetch_ == schedule_.size()) return std::nullopt;
  const planner::CacheFetch& fetch = schedule_[next_fetch_];
  if (fetch.room_from > uses_.position() || blocks_[fetch.block].pins > 0) return std::nullopt;
  return fetch.chunk;
}

RCache::Placement RCache::start_fetch() {
  ELIXIR_CHECK(next_fetch().has_value(), "nothing can be fetched now");
  const planner::CacheFetch& fetch = schedule_[next_fetch_++];
  const uint32_t evicted = take_block(fetch.block, fetch.chunk);
  blocks_[fetch.block].fetched = true;
  return {fetch.block, Presence::kFetched, evicted};
}

// A block for the chunk of the use in hand. While the schedule is followed that chunk is its next
// fetch; a block that is pinned against the record's word ends that until the step is over.
uint32_t RCache::find_room() {
  if (scheduled() && next_fetch_ < schedule_.size()) {
    const planner::CacheFetch& fetch = schedule_[next_fetch_];
    if (fetch.needed_at + 1 == uses_.position() && blocks_[fetch.block].pins == 0) {
      ++next_fetch_;
      return fetch.block;
    }
  }
  follows_schedule_ = false;
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
