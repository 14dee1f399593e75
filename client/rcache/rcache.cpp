#include "client/rcache/rcache.h"

#include "base/check.h"

namespace elixir {

RCache::RCache(uint32_t n_chunks, uint32_t n_blocks, uint32_t first_frozen)
    : first_frozen_(first_frozen),
      blocks_(n_blocks),
      block_of_(n_chunks, kNone),
      holds_(n_blocks, kNone) {
  step_.held = step_after_pass_.held = pass_.held = holds_;
  for (uint32_t i = 0; i < n_blocks; ++i) push(free_, i);
}

// The block that holds the chunk.
RCache::Block& RCache::holder(uint32_t chunk) {
  ELIXIR_CHECK(chunk < block_of_.size() && block_of_[chunk] != kNone, "no block holds chunk {}",
               chunk);
  return blocks_[block_of_[chunk]];
}

std::optional<RCache::Placement> RCache::pin(uint32_t chunk, Use user) {
  ELIXIR_CHECK(chunk < block_of_.size(), "chunk {} of {}", chunk, block_of_.size());
  use(chunk, user);
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
    if (blocks_[index].pins == 0) remove(evictable_, index);
  }
  Block& block = blocks_[index];
  block.fetched = false;
  if (block.pins++ == 0) ++n_pinned_;
  return Placement{index, presence, evicted};
}

bool RCache::unpin(uint32_t chunk) {
  Block& block = holder(chunk);
  ELIXIR_CHECK(block.pins > 0, "unpin of chunk {}, which is not pinned", chunk);
  if (--block.pins > 0) return false;
  --n_pinned_;
  push(evictable_, block_of_[chunk]);
  return true;
}

// The chunk's bytes are not there: whoever needs it next fills a block with it.
void RCache::abandon(uint32_t chunk) {
  Block& block = holder(chunk);
  ELIXIR_CHECK(block.pins > 0 || block.fetched, "chunk {} is abandoned after its use", chunk);
  if (block.pins > 0) unpin(chunk);
  ELIXIR_CHECK(block.pins == 0, "chunk {} is abandoned while an operator uses it", chunk);
  set_free(block_of_[chunk]);
  now().follows = false;
}

void RCache::drop(uint32_t chunk) {
  ELIXIR_CHECK(holder(chunk).pins == 0, "chunk {} is dropped while an operator uses it", chunk);
  set_free(block_of_[chunk]);
  now().follows = false;
}

bool RCache::end_step() {
  ELIXIR_CHECK(n_pinned_ == 0, "{} blocks are pinned at the end of a step", n_pinned_);
  check_invariant();
  for (uint32_t i = 0; i < n_blocks(); ++i) {
    const Block& block = blocks_[i];
    if (block.chunk == kNone || (block.chunk >= first_frozen_ && !block.fetched)) continue;
    set_free(i);
  }
  const bool departed = uses_.end_step();
  passes_.restart();
  pass_.follows = false;
  turn_ = Use::kStep;
  now_ = &step_;
  schedule_step();
  return departed;
}

// ---- who uses chunks, and by which schedule ----

void RCache::use(uint32_t chunk, Use user) {
  if (uses_.begun()) user = Use::kStep;
  if (user != turn_) take_turn(user);
  if (user == Use::kStep) return uses_.touch(chunk, n_pinned_);
  if (passes_.touch(chunk, n_pinned_)) schedule_pass();
  if (!passes_.following()) pass_.follows = false;
}

void RCache::take_turn(Use user) {
  turn_ = user;
  passes_.restart();
  pass_.follows = false;
  now_ = user == Use::kStep ? &step_after_pass_ : &pass_;
  if (user == Use::kStep) schedule_step();
}

// From what lies in blocks now.
void RCache::schedule(Schedule& schedule, const UseOrder& uses) {
  for (uint32_t i = 0; i < n_blocks(); ++i) holds_[i] = blocks_[i].chunk;
  if (uses.version() != schedule.version || holds_ != schedule.held) {
    schedule.fetches =
        planner::schedule_uses(uses.order(), uses.others_pinned(), n_blocks(), holds_);
    schedule.version = uses.version();
    schedule.held = holds_;
  }
  schedule.next = 0;
  schedule.follows = !schedule.fetches.empty();
}

void RCache::schedule_step() {
  if (uses_.following()) {
    schedule(*now_, uses_);
  } else {
    now_->follows = false;
  }
}

void RCache::schedule_pass() { schedule(pass_, passes_); }

bool RCache::scheduled() const {
  return now().follows && (turn_ == Use::kStep ? uses_.following() : passes_.following());
}

uint64_t RCache::position() const {
  return turn_ == Use::kStep ? uses_.position() : passes_.position();
}

// ---- blocks ----

void RCache::push(List& list, uint32_t index) {
  Block& block = blocks_[index];
  block.older = list.newest;
  block.newer = kNone;
  (list.newest == kNone ? list.oldest : blocks_[list.newest].newer) = index;
  list.newest = index;
}

void RCache::remove(List& list, uint32_t index) {
  Block& block = blocks_[index];
  (block.older == kNone ? list.oldest : blocks_[block.older].newer) = block.newer;
  (block.newer == kNone ? list.newest : blocks_[block.newer].older) = block.older;
  block.older = block.newer = kNone;
}

// REQUIRES: evictable.
void RCache::set_free(uint32_t index) {
  Block& block = blocks_[index];
  remove(evictable_, index);
  push(free_, index);
  block_of_[block.chunk] = kNone;
  block.chunk = kNone;
  block.fetched = false;
}

// The chunk takes the block, which is in no list then; returns the one that loses it, or kNone.
uint32_t RCache::take_block(uint32_t index, uint32_t chunk) {
  Block& block = blocks_[index];
  ELIXIR_CHECK(block.pins == 0 && block_of_[chunk] == kNone,
               "chunk {} comes into a block in use, or into a second one", chunk);
  const uint32_t evicted = block.chunk;
  if (evicted != kNone) {
    block_of_[evicted] = kNone;
    remove(evictable_, index);
    ++evictions_;
  } else {
    remove(free_, index);
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
  const auto count = [&](const List& list, bool holds) {
    uint32_t n = 0;
    for (uint32_t i = list.oldest; i != kNone && n <= n_blocks(); i = blocks_[i].newer, ++n) {
      ELIXIR_CHECK((blocks_[i].chunk != kNone) == holds && blocks_[i].pins == 0,
                   "block {} is in the wrong list, with {} pins", i, blocks_[i].pins);
    }
    return n;
  };
  ELIXIR_CHECK(count(evictable_, true) + n_pinned == n_held,
               "{} held blocks, {} pinned, {} in the "
               "list",
               n_held, n_pinned, count(evictable_, true));
  ELIXIR_CHECK(count(free_, false) + n_held == n_blocks(), "{} free and {} held blocks of {}",
               count(free_, false), n_held, n_blocks());
  for (const Schedule* schedule : {&step_, &step_after_pass_, &pass_}) {
    ELIXIR_CHECK(schedule->next <= schedule->fetches.size(), "fetch {} of {}", schedule->next,
                 schedule->fetches.size());
  }
}

// ---- by the schedule ----

std::optional<uint32_t> RCache::next_fetch() const {
  if (!scheduled() || now().next == now().fetches.size()) return std::nullopt;
  const planner::CacheFetch& fetch = now().fetches[now().next];
  if (fetch.room_from > position() || blocks_[fetch.block].pins > 0) return std::nullopt;
  return fetch.chunk;
}

RCache::Placement RCache::start_fetch() {
  ELIXIR_CHECK(next_fetch().has_value(), "nothing can be fetched now");
  const planner::CacheFetch& fetch = now().fetches[now().next++];
  const uint32_t evicted = take_block(fetch.block, fetch.chunk);
  blocks_[fetch.block].fetched = true;
  push(evictable_, fetch.block);
  return {fetch.block, Presence::kFetched, evicted};
}

// A block for the chunk of the use in hand. While the schedule is followed that chunk is its next
// fetch; a block that is pinned against the record's word ends that until the step or pass is over.
uint32_t RCache::find_room() {
  if (scheduled() && now().next < now().fetches.size()) {
    const planner::CacheFetch& fetch = now().fetches[now().next];
    if (fetch.needed_at + 1 == position() && blocks_[fetch.block].pins == 0) {
      ++now().next;
      return fetch.block;
    }
  }
  now().follows = false;
  if (free_.oldest != kNone) return free_.oldest;
  return turn_ == Use::kStep ? evictable_.oldest : evictable_.newest;
}

}  // namespace elixir
