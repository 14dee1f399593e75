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
// goes on. From the step's end until the next one's updates nothing changes them. Then a chunk that
// is not written yet is copied, slice by slice, before each slice is updated, while there is room
// for copies (the shadow); where there is none, its update is held until a writer is done with it.
// A writer that has such a chunk in hand while there is room puts it back, to write it from its
// copy.
//
// Invariant: every chunk is in exactly one of these, and moves down alone:
//
//   placed on the CPU, frozen   live -> written from its own memory -> written
//                               live, or put back -> being copied -> copied -> written from the
//                               copy -> written
//   placed on the GPU           awaited, until every rank has staged it -> staged -> written
//
// Swing chunks move out of place and are never copied: what moves into a slot waits for its writer.
//
// A writer takes what is staged first, since trainers wait for it, then live chunks, first those
// that swing, then the others in the order of their next update, then copies.
//
// What the event loop may not write yet is held: an update of a chunk, or a slot that a chunk has
// left. take_released() names each chunk once, when its hold ends, so the event loop never walks
// over all that is held. No live chunk waits for a free slot: writers take copies after all of
// them.
//
// The event loop asks, workers copy, writers take: one mutex, a few times a chunk. Only the
// constructor and next(), for its Item, allocate.
class Snapshot {
 public:
  struct Rank {
    const SessionMemory* memory;  // outlives this object
    uint32_t shard;
    const std::byte* staging = nullptr;  // Shape::image_bytes(), where chunks are placed on the GPU
  };
  // `shadow_bytes`: what copies may take. Memory of a copy is taken when it is first written.
  // `slots`: as they are after the step.
  Snapshot(const shm::Shape& shape, const StateSlots& slots, std::vector<Rank> ranks,
           uint64_t shadow_bytes);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;

  // ---- the event loop ----

  // Of a chunk, placed on the CPU, that is to be updated now where it lies. kCopy: room for its
  // copy is taken, and the update must copy each slice before it changes it. kHeld: take_released()
  // names the chunk; then ask() again, which does not hold it a second time.
  enum class Gate { kOpen, kCopy, kHeld };
  Gate ask(uint32_t chunk, uint32_t slot);
  // The chunk has left the slot, and others want to write there. False: they may. True: writers
  // still read it, and take_released() names the chunk when they are done.
  bool hold(uint32_t chunk, uint32_t slot);
  // Replaces `chunks` by those whose holds have ended since the last call. REQUIRES: its capacity
  // is Shape::n_chunks.
  void take_released(std::vector<uint32_t>* chunks);
  // A rank has staged a chunk placed on the GPU. False: not the one that is awaited of it.
  bool staged(uint32_t local_rank, uint32_t chunk);
  // Chunks placed on the GPU that are written: so many of its images a rank may forget.
  uint32_t staged_written() const;
  bool awaits_staging() const;
  // It is over, whatever is not written: next() ends, every gate is open.
  void end();
  uint64_t shadow_peak_bytes() const;
  uint64_t shadow_bytes() const { return n_slots_ * slot_bytes_; }
  // Constant.
  const std::vector<Rank>& ranks() const { return ranks_; }
  const StateSlots& slots() const { return slots_; }
  uint64_t shadow_there_bytes() const;  // of it, the memory that is taken

  // ---- workers ----

  // REQUIRES: ask() said kCopy for the slice's chunk, and the slice is as it was then.
  void copy(const Slice& slice);
  // All slices of the chunk are copied.
  void copied(uint32_t chunk);

  // ---- writers ----

  // A rank's shard of a chunk, by array; null where there is none.
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
  // Waits for a chunk to write. Nothing: all are written or in other writers' hands, or it is over.
  std::optional<Item> next();
  // Takes the memory of copies that may still be needed, so that no worker waits for it to be
  // cleared. One thread, beside the others; returns when there is no more to be taken.
  void take_shadow_memory();
  // Asked now and then while a chunk is written: an update waits for it and there is room for its
  // copy. Then the writer's part is over; it wakes the event loop, and the chunk comes again, from
  // the copy, and all of it.
  bool put_back_if_wanted(uint32_t chunk);
  // True: wake the event loop, which waits for something of the kind.
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
  std::byte* shadow_ = nullptr;  // n_slots_ of them, a chunk's images each; null: none
  uint64_t n_slots_ = 0;
  // By chunk: its slot. Written before ask() says kCopy; workers read it between that and copied(),
  // ordered by the pool's mutex.
  std::vector<uint32_t> slot_of_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<State> state_ ELIXIR_GUARDED_BY(mutex_);  // by chunk
  std::vector<uint32_t> free_slots_ ELIXIR_GUARDED_BY(mutex_);
  ChunkList copies_ ELIXIR_GUARDED_BY(mutex_);              // copied, first come first
  std::vector<uint32_t> staged_ ELIXIR_GUARDED_BY(mutex_);  // by local rank: so many chunks
  uint32_t n_begun_ ELIXIR_GUARDED_BY(mutex_) = 0;  // in_order(): so many, the first, are not live
  uint32_t to_copy_ ELIXIR_GUARDED_BY(mutex_);      // that an update may copy, not written
  uint32_t left_ ELIXIR_GUARDED_BY(mutex_);         // not written
  uint32_t in_hand_ ELIXIR_GUARDED_BY(mutex_) = 0;  // of writers
  uint32_t staged_written_ ELIXIR_GUARDED_BY(mutex_) = 0;
  std::vector<Hold> hold_ ELIXIR_GUARDED_BY(mutex_);          // by chunk: what of it is held
  std::vector<uint32_t> released_ ELIXIR_GUARDED_BY(mutex_);  // capacity for all chunks
  uint64_t used_slots_peak_ ELIXIR_GUARDED_BY(mutex_) = 0;    // the lowest ones are used
  uint64_t taken_slots_ ELIXIR_GUARDED_BY(mutex_) = 0;        // by take_shadow_memory()
  bool over_ ELIXIR_GUARDED_BY(mutex_) = false;
};

}  // namespace elixir::daemon
