#pragma once

// Which gathered chunks lie in which blocks of device memory.
//
// Every block is free, evictable or pinned, exactly one.
//   free       holds no chunk. At the start all are.
//   pinned     holds a chunk that at least one operator uses now; pin() brings a chunk here.
//   evictable  holds a chunk that no operator uses; the last unpin() brings it here, and
//              start_fetch() before the first use.
// pin() of a chunk that no block holds takes a free block, else the evictable block whose chunk is
// needed last. Eviction never writes back: the param slots are the truth.
//
// Blocks are of two kinds. Chunks that hold one long parameter together come as one into a long
// block, which takes nothing else; here the first of them stands for the run. All above is true of
// each kind by itself. What is used when is one record, and of what may be fetched now the first
// that is needed comes first.
//
// Training and evaluation each have a record of their own, and a schedule of fetches by it:
// evaluating between two steps changes nothing of what the steps do, but that they begin with what
// lies in blocks. Pure bookkeeping: no memory, no copies, no threads. Not thread-safe. No
// allocation after construction, except where uses depart from the record and another takes its
// place, and where training and evaluation take turns.

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

  // Long blocks, and by chunk whether it goes into one. Their numbers follow those of the others.
  struct LongBlocks {
    uint32_t n_blocks = 0;
    std::vector<uint8_t> is_long = {};
  };

  // n_blocks 0: where every chunk lies on the device anyway. Chunks from `first_frozen` on are
  // never updated.
  RCache(uint32_t n_chunks, uint32_t n_blocks, uint32_t first_frozen = UINT32_MAX,
         LongBlocks long_blocks = {0, {}});

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

  // Who uses a chunk: forward and backward of a step, or a pass without gradients. Once a step has
  // begun, all until its end are its own.
  enum class Use { kStep, kEvaluation };

  // Pins the chunk, counting one use. Empty when it is in no block and all blocks of its kind are
  // pinned.
  // Victim: farthest next use on the recorded order (Belady), which is optimal in gathers. While
  // there is no record to follow: of a step, the least recently used; of an evaluation, the most
  // recently used, since it comes by the same chunks in a circle.
  std::optional<Placement> pin(uint32_t chunk, Use use = Use::kStep);

  // Undoes one pin; true when it was the block's last one. REQUIRES: the chunk is pinned.
  bool unpin(uint32_t chunk);

  // The chunk that the record needs next and no block holds, if a block has room for it now. Ask
  // when what is in use is pinned.
  std::optional<uint32_t> next_fetch() const;
  // Takes next_fetch()'s chunk into its block. REQUIRES: next_fetch() has a value.
  Placement start_fetch();

  // The chunk's block turns free (its filling failed). REQUIRES: pinned once, or just fetched.
  void abandon(uint32_t chunk);

  // What the chunk's block holds is stale: it turns free. REQUIRES: a block holds it, unpinned.
  void drop(uint32_t chunk);

  // A step is over: every chunk is stale and its block free, but for frozen ones that were used:
  // they stay where they are, and the next step's schedule begins with them. Returns what
  // UseRecord::end_step() does. REQUIRES: nothing is pinned.
  bool end_step();

  // What holds between any two calls: the first sentence above, and that blocks and the map from
  // chunks agree. A pass over all blocks and chunks: once a step.
  void check_invariant() const;

  uint32_t block_of(uint32_t chunk) const { return block_of_[chunk]; }
  uint32_t n_blocks() const { return static_cast<uint32_t>(blocks_.size()); }  // of both kinds
  uint32_t n_pinned() const { return n_pinned_[0] + n_pinned_[1]; }
  bool is_long(uint32_t chunk) const { return kind_of(chunk) == kLong; }
  // Of the kind that the chunk goes into.
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
    uint32_t older = kNone, newer = kNone;  // in the list of those that are free, or evictable
    bool fetched = false;                   // and not used since
  };
  // Of blocks, by when they came in. Each that is not pinned is in one.
  struct List {
    uint32_t oldest = kNone, newest = kNone;
  };

  enum Kind : uint32_t { kOrdinary, kLong, kKinds };
  template <typename T>
  using ByKind = std::array<T, kKinds>;

  // What is fetched when, by a record.
  struct Schedule {
    ByKind<std::vector<planner::CacheFetch>> fetches;
    std::vector<uint32_t> held;  // by block, at its start; kNone: free
    uint64_t version = 0;        // of the record
    ByKind<size_t> next = {};    // of fetches
    bool follows = false;        // blocks are as it has them
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
  // Of a step that follows a step, of one that follows an evaluation, of an evaluation's pass.
  Schedule step_, step_after_pass_, pass_;
  Schedule* now_ = &step_;       // that of turn_
  std::vector<uint32_t> holds_;  // by block: room for what is compared with Schedule::held
  Use turn_ = Use::kStep;
  ByKind<uint32_t> n_pinned_ = {};
  uint64_t gathers_ = 0, evictions_ = 0, hits_ = 0;
};

}  // namespace elixir
