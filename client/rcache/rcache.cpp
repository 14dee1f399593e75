#include "client/rcache/rcache.h"

#include <utility>

#include "base/check.h"

namespace elixir {

RCache::RCache(uint32_t n_chunks, uint32_t n_blocks, uint32_t first_frozen, LongBlocks long_blocks)
    : first_frozen_(first_frozen),
      n_ordinary_(n_blocks),
      n_long_(long_blocks.n_blocks),
      is_long_(std::move(long_blocks.is_long)),
      blocks_(n_blocks + n_long_),
      block_of_(n_chunks, kNone),
      holds_(n_blocks + n_long_, kNone) {
  step_.held = step_after_pass_.held = pass_.held = holds_;
  for (uint32_t i = 0; i < blocks_.size(); ++i) push(free_[kind_of_block(i)], i);
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
    index = find_room(kind_of(chunk));
    if (index == kNone) return std::nullopt;
    evicted = take_block(index, chunk);
  } else {
    presence = blocks_[index].fetched ? Presence::kFetched : Presence::kHere;
    if (presence == Presence::kHere) ++hits_;
    if (blocks_[index].pins == 0) remove(evictable_[kind_of(chunk)], index);
  }
  Block& block = blocks_[index];
  block.fetched = false;
  if (block.pins++ == 0) ++n_pinned_[kind_of(chunk)];
  return Placement{index, presence, evicted};
}

bool RCache::unpin(uint32_t chunk) {
  Block& block = holder(chunk);
  ELIXIR_CHECK(block.pins > 0, "unpin of chunk {}, which is not pinned", chunk);
  if (--block.pins > 0) return false;
  --n_pinned_[kind_of(chunk)];
  push(evictable_[kind_of(chunk)], block_of_[chunk]);
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
  ELIXIR_CHECK(n_pinned() == 0, "{} blocks are pinned at the end of a step", n_pinned());
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
  const uint32_t pinned = n_pinned_beside(chunk);
  if (user == Use::kStep) return uses_.touch(chunk, pinned);
  if (passes_.touch(chunk, pinned)) schedule_pass();
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
    for (auto& fetches : schedule.fetches) fetches.clear();
    const planner::CacheBlocks blocks{n_ordinary_, n_long_, is_long_};
    for (const planner::CacheFetch& fetch :
         planner::schedule_uses(uses.order(), uses.others_pinned(), blocks, holds_)) {
      schedule.fetches[kind_of(fetch.chunk)].push_back(fetch);
    }
    schedule.version = uses.version();
    schedule.held = holds_;
  }
  schedule.next = {};
  schedule.follows = !schedule.fetches[kOrdinary].empty() || !schedule.fetches[kLong].empty();
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
  remove(evictable_[kind_of_block(index)], index);
  push(free_[kind_of_block(index)], index);
  block_of_[block.chunk] = kNone;
  block.chunk = kNone;
  block.fetched = false;
}

// The chunk takes the block, which is in no list then; returns the one that loses it, or kNone.
uint32_t RCache::take_block(uint32_t index, uint32_t chunk) {
  Block& block = blocks_[index];
  ELIXIR_CHECK(block.pins == 0 && block_of_[chunk] == kNone,
               "chunk {} comes into a block in use, or into a second one", chunk);
  ELIXIR_CHECK(kind_of_block(index) == kind_of(chunk), "chunk {} comes into block {}, {}", chunk,
               index, is_long(chunk) ? "which is too short" : "which is a long one");
  const uint32_t evicted = block.chunk;
  if (evicted != kNone) {
    block_of_[evicted] = kNone;
    remove(evictable_[kind_of_block(index)], index);
    ++evictions_;
  } else {
    remove(free_[kind_of_block(index)], index);
  }
  block.chunk = chunk;
  block_of_[chunk] = index;
  ++gathers_;
  return evicted;
}

void RCache::check_invariant() const {
  uint32_t n_held = 0;
  ByKind<uint32_t> n_pinned = {};
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
    n_pinned[kind_of_block(i)] += block.pins > 0 ? 1 : 0;
  }
  uint32_t n_placed = 0;
  for (const uint32_t block : block_of_) n_placed += block == kNone ? 0 : 1;
  ELIXIR_CHECK(n_placed == n_held, "{} chunks are in {} blocks", n_placed, n_held);
  ELIXIR_CHECK(n_pinned == n_pinned_, "{} and {} blocks are pinned, counted as {} and {}",
               n_pinned[kOrdinary], n_pinned[kLong], n_pinned_[kOrdinary], n_pinned_[kLong]);
  const auto count = [&](const ByKind<List>& lists, bool holds) {
    uint32_t n = 0;
    for (const Kind kind : {kOrdinary, kLong}) {
      for (uint32_t i = lists[kind].oldest; i != kNone && n <= n_blocks();
           i = blocks_[i].newer, ++n) {
        ELIXIR_CHECK((blocks_[i].chunk != kNone) == holds && blocks_[i].pins == 0 &&
                         kind_of_block(i) == kind,
                     "block {} is in the wrong list, with {} pins", i, blocks_[i].pins);
      }
    }
    return n;
  };
  ELIXIR_CHECK(count(evictable_, true) + this->n_pinned() == n_held,
               "{} held blocks, {} pinned, {} in the "
               "list",
               n_held, this->n_pinned(), count(evictable_, true));
  ELIXIR_CHECK(count(free_, false) + n_held == n_blocks(), "{} free and {} held blocks of {}",
               count(free_, false), n_held, n_blocks());
  for (const Schedule* schedule : {&step_, &step_after_pass_, &pass_}) {
    for (const Kind kind : {kOrdinary, kLong}) {
      ELIXIR_CHECK(schedule->next[kind] <= schedule->fetches[kind].size(), "fetch {} of {}",
                   schedule->next[kind], schedule->fetches[kind].size());
    }
  }
}

// ---- by the schedule ----

// Of each kind's next one, as far as its block has room, the one that is needed first; or null.
const planner::CacheFetch* RCache::fetch_with_room() const {
  const planner::CacheFetch* first = nullptr;
  for (const Kind kind : {kOrdinary, kLong}) {
    if (!scheduled() || now().next[kind] == now().fetches[kind].size()) continue;
    const planner::CacheFetch& fetch = now().fetches[kind][now().next[kind]];
    if (fetch.room_from > position() || blocks_[fetch.block].pins > 0) continue;
    if (first == nullptr || fetch.needed_at < first->needed_at) first = &fetch;
  }
  return first;
}

std::optional<uint32_t> RCache::next_fetch() const {
  const planner::CacheFetch* const fetch = fetch_with_room();
  return fetch == nullptr ? std::nullopt : std::optional(fetch->chunk);
}

RCache::Placement RCache::start_fetch() {
  const planner::CacheFetch* const fetch = fetch_with_room();
  ELIXIR_CHECK(fetch != nullptr, "nothing can be fetched now");
  const Kind kind = kind_of(fetch->chunk);
  ++now().next[kind];
  const uint32_t evicted = take_block(fetch->block, fetch->chunk);
  blocks_[fetch->block].fetched = true;
  push(evictable_[kind], fetch->block);
  return {fetch->block, Presence::kFetched, evicted};
}

// A block for the chunk of the use in hand. While the schedule is followed that chunk is the next
// fetch of its kind; a block that is pinned against the record's word ends that until the step or
// pass is over.
uint32_t RCache::find_room(Kind kind) {
  if (scheduled() && now().next[kind] < now().fetches[kind].size()) {
    const planner::CacheFetch& fetch = now().fetches[kind][now().next[kind]];
    if (fetch.needed_at + 1 == position() && blocks_[fetch.block].pins == 0) {
      ++now().next[kind];
      return fetch.block;
    }
  }
  now().follows = false;
  if (free_[kind].oldest != kNone) return free_[kind].oldest;
  return turn_ == Use::kStep ? evictable_[kind].oldest : evictable_[kind].newest;
}

}  // namespace elixir
