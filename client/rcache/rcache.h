#pragma once

// Keeps track of which gathered chunks are in which blocks of device memory.
//
// Every block is free, evictable or pinned, exactly one.
//   free       holds no chunk. At the start all are.
//   pinned     holds a chunk that at least one operator uses now; pin() brings a chunk here.
//   evictable  holds a chunk that no operator uses; the last unpin() brings it here, and
//              start_fetch() before the first use.
// If no block holds the chunk, pin() takes a free block, or else the evictable block whose chunk is
// needed last. Eviction never writes back, because the param slots always have the chunk's values.
//
// There are two kinds of blocks. The chunks that together hold one long parameter form a run. A
// long block takes one run and nothing else, and here the run's first chunk stands for it. The
// rules above hold for each kind separately. One record covers the uses of both kinds. Among the
// chunks that may be fetched now, the one that is needed first comes first.
//
// Training and evaluation each have their own record, and their own schedule of fetches from it.
// Evaluation between two steps changes only which chunks are in blocks when the next step begins.
// Pure bookkeeping: no memory, no copies, no threads. Not thread-safe. It allocates after
// construction only when uses depart from the record and another one replaces it, and when training
// and evaluation take turns.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/rcache/pass_record.h"
#include "client/rcache/use_record.h"
#include "planner/cache/fetches.h"

namespace elixir {

class RCache {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  RCache(const RCache&) = delete;
  RCache& operator=(const RCache&) = delete;

  // The number of long blocks, and, by chunk, whether it goes into one. Long blocks are numbered
  // behind the ordinary ones.
  struct LongBlocks {
    uint32_t n_blocks = 0;
    std::vector<uint8_t> is_long = {};
  };

  // n_blocks 0: every chunk is always on the device. Chunks from `first_frozen` on are never
  // updated.
  RCache(uint32_t n_chunks, uint32_t n_blocks, uint32_t first_frozen = UINT32_MAX,
         LongBlocks long_blocks = {0, {}});

  enum class Presence {
    kHere,     // in a block, and used there before
    kFetched,  // start_fetch() took it in, and nothing has used it since: the copy may be in
               // progress
    kMissing,  // the caller must fill the block
  };
  struct Placement {
    uint32_t block;
    Presence presence;
    uint32_t evicted;  // the chunk that lost the block, or kNone
  };

  // The user of a chunk: forward and backward of a step, or a pass without gradients. Once a step
  // has begun, all uses until its end belong to the step.
  enum class Use { kStep, kEvaluation };

  // Pins the chunk and counts one use. Empty if it is in no block and all blocks of its kind are
  // pinned. It evicts the chunk with the farthest next use in the recorded order (Belady), which
  // gives the fewest gathers. Without a record a step evicts the least recently used chunk. An
  // evaluation then evicts the most recently used one, because it passes over the same chunks in a
  // circle.
  std::optional<Placement> pin(uint32_t chunk, Use use = Use::kStep);

  // Undoes one pin; true when it was the block's last one. REQUIRES: the chunk is pinned.
  bool unpin(uint32_t chunk);

  // The first chunk that the record needs next and that no block holds, if a block has room for it
  // now. Call it when all chunks in use are pinned.
  std::optional<uint32_t> next_fetch() const;
  // Takes next_fetch()'s chunk into its block. REQUIRES: next_fetch() has a value.
  Placement start_fetch();

  // Frees the chunk's block, because filling it failed. REQUIRES: pinned once, or just fetched.
  void abandon(uint32_t chunk);

  // Frees the chunk's block, because its content is stale. REQUIRES: a block holds the chunk,
  // unpinned.
  void drop(uint32_t chunk);

  // Ends a step: every chunk is stale, and its block becomes free. Frozen chunks that were used
  // stay in their blocks, and the next step's schedule begins with them. Returns the result of
  // UseRecord::end_step(). REQUIRES: nothing is pinned.
  bool end_step();

  // Checks the conditions between any two calls: the invariant above, and that blocks and the map
  // from chunks agree. It passes over all blocks and chunks, so call it once per step.
  void check_invariant() const;

  uint32_t block_of(uint32_t chunk) const { return block_of_[chunk]; }
  uint32_t n_blocks() const { return static_cast<uint32_t>(blocks_.size()); }  // ordinary and long
  uint32_t n_pinned() const { return n_pinned_[0] + n_pinned_[1]; }
  bool is_long(uint32_t chunk) const { return kind_of(chunk) == kLong; }
  // Counts for the kind of block that the chunk goes into.
  uint32_t n_blocks_for(uint32_t chunk) const { return is_long(chunk) ? n_long_ : n_ordinary_; }
  uint32_t n_pinned_beside(uint32_t chunk) const { return n_pinned_[kind_of(chunk)]; }

  // Since construction.
  uint64_t gathers() const { return gathers_; }
  uint64_t evictions() const { return evictions_; }
  // Uses of chunks that lay in a block and had been used there before.
  uint64_t hits() const { return hits_; }

 private:
  struct Block {
    uint32_t chunk = kNone;                 // kNone: free
    uint32_t pins = 0;                      // 0 and a chunk: evictable
    uint32_t older = kNone, newer = kNone;  // neighbours in the list of free or of evictable blocks
    bool fetched = false;                   // fetched by start_fetch(), and not used since
  };
  // Blocks in the order in which they were added. Every block that is not pinned is in one list.
  struct List {
    uint32_t oldest = kNone, newest = kNone;
  };

  enum Kind : uint32_t { kOrdinary, kLong, kKinds };
  template <typename T>
  using ByKind = std::array<T, kKinds>;

  // The fetches that follow from a record.
  struct Schedule {
    ByKind<std::vector<planner::CacheFetch>> fetches;
    std::vector<uint32_t> held;  // by block, at the schedule's start; kNone: free
    uint64_t version = 0;        // the record's version
    ByKind<size_t> next = {};    // index into `fetches`
    bool follows = false;        // the blocks hold the chunks that the schedule expects
  };

  Kind kind_of(uint32_t chunk) const {
    return chunk < is_long_.size() && is_long_[chunk] != 0 ? kLong : kOrdinary;
  }
  Kind kind_of_block(uint32_t index) const { return index < n_ordinary_ ? kOrdinary : kLong; }
  Block& holder(uint32_t chunk);
  void use(uint32_t chunk, Use use);
  void take_turn(Use use);
  void schedule(Schedule& schedule, const UseOrder& uses);
  void schedule_step();
  void schedule_pass();
  Schedule& now() { return *now_; }
  const Schedule& now() const { return *now_; }
  bool scheduled() const;
  uint64_t position() const;
  const planner::CacheFetch* fetch_with_room() const;
  uint32_t find_room(Kind kind);
  uint32_t take_block(uint32_t index, uint32_t chunk);
  void push(List& list, uint32_t index);
  void remove(List& list, uint32_t index);
  void set_free(uint32_t index);

  const uint32_t first_frozen_, n_ordinary_, n_long_;
  const std::vector<uint8_t> is_long_;  // by chunk
  std::vector<Block> blocks_;
  std::vector<uint32_t> block_of_;
  ByKind<List> free_, evictable_;
  UseRecord uses_;
  PassRecord passes_;
  // Schedules for a step after a step, for a step after an evaluation, and for a pass of an
  // evaluation.
  Schedule step_, step_after_pass_, pass_;
  Schedule* now_ = &step_;       // the schedule for turn_
  std::vector<uint32_t> holds_;  // by block: scratch memory, compared with Schedule::held
  Use turn_ = Use::kStep;
  ByKind<uint32_t> n_pinned_ = {};
  uint64_t gathers_ = 0, evictions_ = 0, hits_ = 0;
};

}  // namespace elixir
