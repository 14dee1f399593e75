#pragma once

// Which gathered chunks lie in which blocks of device memory.
//
// Every block is free, evictable or pinned, exactly one.
//   free       holds no chunk. At the start all are.
//   pinned     holds a chunk that at least one operator uses now; pin() brings a chunk here.
//   evictable  holds a chunk that no operator uses; the last unpin() brings it here, and
//              start_fetch() before the first use.
// pin() of a chunk that no block holds takes a free block, else the evictable block whose chunk is
// needed last. Eviction never writes back: the param slots are the truth. Pure bookkeeping: no
// memory, no copies, no threads. Not thread-safe. No allocation after construction, except where a
// step departs from the recorded one and a record takes another's place.

#include <cstdint>
#include <optional>
#include <vector>

#include "client/rcache/use_record.h"
#include "planner/cache/fetches.h"

namespace elixir {

class RCache {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // n_blocks 0: where every chunk lies on the device anyway. Chunks from `first_frozen` on are
  // never updated.
  RCache(uint32_t n_chunks, uint32_t n_blocks, uint32_t first_frozen = UINT32_MAX);

  enum class Presence {
    kHere,     // used before
    kFetched,  // by start_fetch(), and not used since: it may be under way
    kMissing,  // the caller must fill the block
  };
  struct Placement {
    uint32_t block;
    Presence presence;
    uint32_t evicted;  // the chunk that lost the block, or kNone
  };

  // Pins the chunk, counting one use. Empty when it is in no block and all blocks are pinned.
  // Victim: farthest next use on the recorded order (Belady), which is optimal in gathers; while
  // there is no record to follow, the least recently used.
  std::optional<Placement> pin(uint32_t chunk);

  // Undoes one pin; true when it was the block's last one. REQUIRES: the chunk is pinned.
  bool unpin(uint32_t chunk);

  // The chunk that the record needs next and no block holds, if a block has room for it now. Ask
  // when what is in use is pinned.
  std::optional<uint32_t> next_fetch() const;
  // Takes next_fetch()'s chunk into its block. REQUIRES: next_fetch() has a value.
  Placement start_fetch();

  // The chunk's block turns free (its filling failed). REQUIRES: pinned once, or just fetched.
  void abandon(uint32_t chunk);

  // A step is over: every chunk is stale and its block free, but for frozen ones that were used:
  // they stay where they are, and the next step's schedule begins with them. Returns what
  // UseRecord::end_step() does. REQUIRES: nothing is pinned.
  bool end_step();

  // What holds between any two calls: the first sentence above, and that blocks and the map from
  // chunks agree. A pass over all blocks and chunks: once a step.
  void check_invariant() const;

  uint32_t block_of(uint32_t chunk) const { return block_of_[chunk]; }
  uint32_t n_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t n_pinned() const { return n_pinned_; }

  // Since construction.
  uint64_t gathers() const { return gathers_; }
  uint64_t evictions() const { return evictions_; }
  uint64_t hits() const { return hits_; }  // uses that were no chunk's first since its gather

 private:
  struct Block {
    uint32_t chunk = kNone;  // kNone: free
    uint32_t pins = 0;       // 0 and a chunk: evictable
    uint64_t last_use = 0;
    bool fetched = false;  // and not used since
  };

  Block& holder(uint32_t chunk);
  bool scheduled() const { return follows_schedule_ && uses_.following(); }
  uint32_t find_room();
  bool better_victim(const Block& a, const Block& b) const;
  uint32_t take_block(uint32_t index, uint32_t chunk);

  const uint32_t first_frozen_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> block_of_;
  UseRecord uses_;
  std::vector<planner::CacheFetch> schedule_;  // of the record
  uint64_t scheduled_version_ = 0;
  std::vector<uint32_t> held_, scheduled_held_;  // by block, at the step's start; kNone: free
  size_t next_fetch_ = 0;                        // of schedule_
  bool follows_schedule_ = false;                // this step's blocks are as the schedule has them
  uint64_t clock_ = 0;
  uint32_t n_pinned_ = 0;
  uint64_t gathers_ = 0, evictions_ = 0, hits_ = 0;
};

}  // namespace elixir
