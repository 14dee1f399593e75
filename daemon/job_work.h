#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "daemon/session_memory.h"
#include "daemon/slices.h"
#include "optim_cpu/adam.h"
#include "shm/messages.h"

namespace elixir::daemon {

// What worker threads do for one job: the update of a step, or taking a chunk's initial weights.
//
// The event loop begins a piece of work while no worker holds this object, hands it to the
// WorkerPool, and touches it again only after the pool has given it back: the pool's mutex orders
// both. Between, workers take slices by an atomic counter; a slice costs no allocation, lock, log
// line or system call.
class JobWork {
 public:
  struct RankMemory {
    const SessionMemory* memory;  // outlives this object
    uint32_t shard;               // the rank among all of the job
  };
  struct Options {
    shm::Shape shape;
    SliceTable slices;
    std::vector<uint32_t> thread_limits;  // by group
    std::vector<RankMemory> ranks;        // by local rank
    uint64_t numel = 0;                   // parameters updated here, without padding
  };
  explicit JobWork(Options options);

  // ---- the event loop ----

  // All slices: the update of `step`.
  void begin_step(uint32_t step, const optim::AdamStep& constants, int64_t commit_ns);
  // The slices of one chunk: FP32 values from the rank's grad slot into all ranks' states (host
  // exchange), or into its own.
  void begin_load(uint32_t rank, uint32_t chunk, shm::LoadPart part);
  // Publishes the step. For the event loop where there is no chunk whose completion would.
  void complete_step();
  int64_t update_ns() const { return update_ns_; }

  // ---- worker threads ----

  uint32_t thread_limit(uint32_t group) const { return options_.thread_limits[group]; }
  // No slice of the group is left to take (some may still be in hand).
  bool exhausted(uint32_t group) const;
  bool exhausted() const;
  // Takes and does one slice. False when none was left. `worker` counts over all groups.
  bool run_slice(uint32_t group, uint32_t worker);

  // ---- any thread ----

  // Chunks of the step in flight that are not updated yet.
  uint32_t chunks_left() const { return chunks_left_.load(std::memory_order_relaxed); }

 private:
  enum class Kind { kStep, kLoad };
  struct alignas(shm::kCacheLine) Cursor {
    std::atomic<uint32_t> next{0};
    uint32_t end = 0;
  };

  void update(const Slice& slice, uint32_t worker);
  void load(const Slice& slice);
  void complete_slice(uint32_t chunk);
  void complete_chunk(uint32_t chunk);
  const std::byte* grad(const Slice& slice, uint32_t rank) const;

  const Options options_;
  const optim::Isa isa_;

  // Set by begin_*, constant while workers hold this object.
  Kind kind_ = Kind::kStep;
  uint32_t step_ = 0;
  optim::AdamStep constants_{};
  int64_t commit_ns_ = 0;
  shm::LoadPart part_ = shm::LoadPart::kWhole;
  uint32_t loader_ = 0;

  // Shared by workers.
  std::vector<Cursor> cursors_;                           // by group
  std::unique_ptr<std::atomic<uint32_t>[]> slices_left_;  // by chunk
  std::atomic<uint32_t> chunks_left_{0};
  int64_t update_ns_ = 0;  // by the worker that completes the step
};

}  // namespace elixir::daemon
