#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/norm_sum.h"
#include "daemon/grad_tracker.h"
#include "daemon/parameter_updates.h"
#include "daemon/session_memory.h"
#include "daemon/slices.h"
#include "daemon/snapshot.h"
#include "daemon/state_slots.h"
#include "optim_cpu/adam.h"
#include "shm/messages.h"

namespace elixir::daemon {

// The step that tasks belong to.
struct StepWork {
  uint32_t step = 0;
  bool completes_step = false;                // with the last of these tasks
  uint64_t updated_numel = 0;                 // in the step, once it is complete
  uint32_t early_chunks = 0, early_hits = 0;  // UpdateResult's
  uint32_t swing_chunks = 0;
};

// The work of worker threads for one job: tasks on chunks (sums of gradients, squares, updates), or
// taking a chunk's initial weights.
//
// The event loop begins a piece of work while no worker holds this object, and hands it to the
// WorkerPool. It touches the object again only after the pool has given it back. The pool's mutex
// orders both. In between, workers take slices by an atomic counter; a slice costs no allocation,
// lock, log line or system call.
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
    const ParameterUpdates* updates;      // outlives this object
    const StateSlots* slots;              // outlives this object
    // Updates in place write redo records (optim_cpu/redo.h). Off in elixird: nothing recovers from
    // them yet, and one thread's update of BF16 takes a fifth longer with them.
    bool redo_records = false;
  };
  explicit JobWork(Options options);

  // ---- the event loop ----

  // Begins at least one task, at most one per chunk. `tracker` knows the revisions that are taken.
  void begin_tasks(std::span<const ChunkTask> tasks, const StepWork& step,
                   const GradTracker& tracker, int64_t begin_ns);
  // The snapshot for copies of tasks; it lives until the next one is set. Null: no task copies.
  void set_snapshot(std::shared_ptr<Snapshot> snapshot) { snapshot_ = std::move(snapshot); }
  // Begins to load one chunk: values go from the rank's grad slot into the states of all ranks
  // (host exchange), or of this rank (collective exchange).
  void begin_load(uint32_t rank, uint32_t chunk, shm::LoadPart part);
  // The squares of all chunks, from the latest tasks that took them. REQUIRES: host exchange.
  NormSum squares() const;
  // Publishes that the chunks' states of the step are in the slots that StateSlots has for them.
  void publish_params(std::span<const uint32_t> chunks, uint32_t step);
  // Publishes the step. The event loop calls it if no chunk's completion does that.
  void complete_step(const StepWork& step);
  // Publishes how often each parameter has been updated, if ranks do not know it.
  void tell_updates();
  // Publishes a skipped step: all chunks stay as they are.
  void skip_step(const StepWork& step);
  // Time spent on the last completed step.
  int64_t update_ns() const { return update_ns_; }

  // ---- worker threads ----

  uint32_t thread_limit(uint32_t group) const { return options_.thread_limits[group]; }
  // Whether no slice of the group is left to take (some may still be in hand).
  bool exhausted(uint32_t group) const;
  bool exhausted() const;
  // Takes and does one slice. False when none was left. `worker` counts over all groups.
  bool run_slice(uint32_t group, uint32_t worker);

  // ---- any thread ----

  // Tasks in flight that are not done yet.
  uint32_t chunks_left() const { return chunks_left_.load(std::memory_order_relaxed); }

 private:
  enum class Kind { kTasks, kLoad };
  struct alignas(shm::kCacheLine) Cursor {
    std::atomic<uint32_t> next{0};
    uint32_t end = 0;
  };
  // A NormSum that workers add to. Relaxed throughout: integer addition commutes, and the pool's
  // mutex orders it with the event loop's reading.
  struct alignas(shm::kCacheLine) SharedNorm {
    std::atomic<uint64_t> limb[kNormLimbs];
    std::atomic<uint64_t> nonfinite;
  };
  struct Progress {
    std::atomic<uint32_t> slices_left{0};
    std::atomic<uint64_t> update_begin_ns{0};  // 0: has not begun
  };

  void rewind();
  void queue_chunk(uint32_t chunk);
  void run_task(const Slice& slice, uint32_t worker);
  void take(const Slice& slice, const ChunkTask& task);
  void add_squares(uint32_t chunk, const NormSum& squares);
  void update(const Slice& slice, const ChunkTask& task, uint32_t worker);
  void update_run(const Slice& run, const ChunkTask& task, uint32_t worker,
                  const optim::AdamStep& step);
  void load(const Slice& slice);
  void complete_slice(uint32_t chunk);
  void complete_chunk(uint32_t chunk);
  void publish_sum(uint32_t chunk);
  void publish_update(uint32_t chunk);
  void note_times(uint32_t chunk);
  void copy_run(const Slice& run, const ChunkTask& task);
  const std::byte* grad(const Slice& slice, uint32_t rank) const;
  int gather_grads(const Slice& slice, uint64_t ranks, const void** grads) const;

  const Options options_;
  const optim::Isa isa_;

  // Set by begin_*, constant while workers hold this object.
  Kind kind_ = Kind::kTasks;
  StepWork step_;
  int64_t begin_ns_ = 0;
  std::shared_ptr<Snapshot> snapshot_;
  shm::LoadPart part_ = shm::LoadPart::kWhole;
  uint32_t loader_ = 0;
  std::vector<ChunkTask> tasks_;              // by chunk
  std::vector<uint32_t> revisions_;           // revisions to be summed: chunk by chunk, all ranks
  std::vector<std::vector<uint32_t>> queue_;  // by group: slices to do; capacity for all

  // Shared by workers.
  std::vector<Cursor> cursors_;            // by group
  std::unique_ptr<Progress[]> progress_;   // by chunk
  std::unique_ptr<SharedNorm[]> squares_;  // by chunk; null with the collective exchange
  std::atomic<uint32_t> chunks_left_{0};
  // Written by the worker that completes the last task.
  int64_t worked_ns_ = 0;  // so far, on the step in progress
  int64_t update_ns_ = 0;
};

}  // namespace elixir::daemon
