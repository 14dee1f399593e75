#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "daemon/chunk_list.h"
#include "daemon/session_memory.h"
#include "daemon/slices.h"
#include "daemon/state_slots.h"
#include "shm/shape.h"

namespace elixir::daemon {

// The states of a job as they are after one step, while writers bring them to a disk and the job
// continues. Nothing changes them before the next step's updates. Then a chunk that is not written
// yet is copied, slice by slice, before each slice is updated. If the memory for copies (the
// shadow) has no room, the chunk's update is held until a writer is done with it. If a writer has
// such a chunk in hand and there is room, it puts the chunk back, and later writes it from its
// copy.
//
// Invariant: every chunk is in exactly one of these states, and only moves forward:
//
//   placed on the CPU, frozen   live -> written from its own memory -> written
//                               live, or put back -> being copied -> copied -> written from the
//                               copy -> written
//   placed on the GPU           awaited, until every rank has staged it -> staged -> written
//
// Swing chunks move out of place and are never copied: a move into a slot waits for the slot's
// writer.
//
// A writer takes staged chunks first, because trainers wait for them. Live chunks follow: first
// those that swing, then the others in the order of their next update. Copies come last.
//
// Some memory must not change yet: the snapshot holds updates of some chunks, and slots that chunks
// have left. When a hold ends, take_released() names the chunk, once. So the event loop never walks
// over all that is held. No live chunk waits for a free slot: writers take copies after all live
// chunks.
//
// The event loop asks, workers copy, writers take, under one mutex that is locked a few times per
// chunk. Only the constructor and next(), for its Item, allocate.
// Note: docs/design/elixir.md, "a save beside training".
class Snapshot {
 public:
  struct Rank {
    const SessionMemory* memory;  // outlives this object
    uint32_t shard;
    const std::byte* staging = nullptr;  // Shape::image_bytes(), if chunks are placed on the GPU
  };
  // `shadow_bytes`: the most memory of copies. A copy takes its memory when it is first written.
  // `slots`: those after the step.
  Snapshot(const shm::Shape& shape, const StateSlots& slots, std::vector<Rank> ranks,
           uint64_t shadow_bytes);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;

  // ---- the event loop ----

  // Call it before a chunk placed on the CPU is updated in place. kCopy: room for its copy is
  // taken, and the update must copy each slice before it changes it. kHeld: take_released() names
  // the chunk later; then call ask() again, which does not hold it a second time.
  enum class Gate { kOpen, kCopy, kHeld };
  Gate ask(uint32_t chunk, uint32_t slot);
  // The chunk has left the slot, and others want to write there. False: they may. True: writers
  // still read it, and take_released() names the chunk when they are done.
  bool hold(uint32_t chunk, uint32_t slot);
  // Replaces `chunks` by those whose holds have ended since the last call. REQUIRES: its capacity
  // is Shape::n_chunks.
  void take_released(std::vector<uint32_t>* chunks);
  // A rank has staged a chunk placed on the GPU. False if it is not the awaited one.
  bool staged(uint32_t local_rank, uint32_t chunk);
  // How many chunks placed on the GPU are written: a rank may forget as many of its images.
  uint32_t staged_written() const;
  bool awaits_staging() const;
  // Ends the snapshot, even if not all is written: next() ends, and every gate is open.
  void end();
  uint64_t shadow_peak_bytes() const;
  uint64_t shadow_bytes() const { return n_slots_ * slot_bytes_; }
  // Constant after construction.
  const std::vector<Rank>& ranks() const { return ranks_; }
  const StateSlots& slots() const { return slots_; }
  uint64_t shadow_there_bytes() const;  // the part of it that is taken

  // ---- workers ----

  // REQUIRES: ask() said kCopy for the slice's chunk, and the slice is as it was then.
  void copy(const Slice& slice);
  // All slices of the chunk are copied.
  void copied(uint32_t chunk);

  // ---- writers ----

  // A rank's shard of a chunk, by array; null if there is none.
  struct Arrays {
    uint32_t shard = 0;
    const std::byte* param = nullptr;
    const std::byte* master = nullptr;
    const std::byte* moments[kMaxMoments] = {};
  };
  struct Item {
    uint32_t chunk = 0;
    std::vector<Arrays> ranks;  // by local rank
  };
  // Waits for a chunk to write. Empty if all are written or in other writers' hands, or if the
  // snapshot has ended.
  std::optional<Item> next();
  // Takes the memory of copies that may still be needed, so that no worker waits while it is
  // cleared. For one thread beside the others; returns when no more is needed.
  void take_shadow_memory();
  // Call it now and then while a chunk is written. True: an update waits for it, and there is room
  // for its copy. Then the writer stops and wakes the event loop, and the whole chunk comes again,
  // from the copy.
  bool put_back_if_wanted(uint32_t chunk);
  // The chunk is written. True: wake the event loop, because it waits for such a chunk.
  bool written(uint32_t chunk);
  bool all_written() const;

 private:
  enum class State : uint8_t {
    kLive,
    kWritingLive,
    kPutBack,
    kCopying,
    kCopied,
    kWritingCopy,
    kAwaited,
    kStaged,
    kWritingStaged,
    kWritten
  };

  enum class Hold : uint8_t { kNone, kUpdate, kSlot };

  bool take_slot(uint32_t chunk) ELIXIR_REQUIRES(mutex_);
  void release(uint32_t chunk) ELIXIR_REQUIRES(mutex_);
  uint32_t in_order(uint32_t number) const;
  std::optional<uint32_t> take() ELIXIR_REQUIRES(mutex_);
  Item item_of(uint32_t chunk) const ELIXIR_REQUIRES(mutex_);
  Arrays image_arrays(const std::byte* image) const;
  Arrays live_arrays(uint32_t local_rank, uint32_t chunk) const;
  std::byte* slot_image(uint32_t slot, uint32_t local_rank) const;

  const shm::Shape shape_;
  const std::vector<Rank> ranks_;
  const StateSlots slots_;
  const uint64_t slot_bytes_;
  std::byte* shadow_ = nullptr;  // n_slots_ slots, each with a chunk's images; null: none
  uint64_t n_slots_ = 0;
  // By chunk: its slot. Written before ask() says kCopy; workers read it between that and copied(),
  // ordered by the pool's mutex.
  std::vector<uint32_t> slot_of_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<State> state_ ELIXIR_GUARDED_BY(mutex_);  // by chunk
  std::vector<uint32_t> free_slots_ ELIXIR_GUARDED_BY(mutex_);
  ChunkList copies_ ELIXIR_GUARDED_BY(mutex_);              // copied, first come first
  std::vector<uint32_t> staged_ ELIXIR_GUARDED_BY(mutex_);  // by local rank: how many chunks
  // this many chunks, the first of in_order(), are not live
  uint32_t n_begun_ ELIXIR_GUARDED_BY(mutex_) = 0;
  uint32_t to_copy_ ELIXIR_GUARDED_BY(mutex_);      // not written, and an update may copy it
  uint32_t left_ ELIXIR_GUARDED_BY(mutex_);         // not written
  uint32_t in_hand_ ELIXIR_GUARDED_BY(mutex_) = 0;  // of writers
  uint32_t staged_written_ ELIXIR_GUARDED_BY(mutex_) = 0;
  std::vector<Hold> hold_ ELIXIR_GUARDED_BY(mutex_);          // by chunk: the kind of its hold
  std::vector<uint32_t> released_ ELIXIR_GUARDED_BY(mutex_);  // capacity for all chunks
  uint64_t used_slots_peak_ ELIXIR_GUARDED_BY(mutex_) = 0;    // the lowest ones are used
  uint64_t taken_slots_ ELIXIR_GUARDED_BY(mutex_) = 0;        // by take_shadow_memory()
  bool over_ ELIXIR_GUARDED_BY(mutex_) = false;
};

}  // namespace elixir::daemon
