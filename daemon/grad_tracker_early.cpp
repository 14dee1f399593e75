// Which chunks are updated early, and when: one after another, of those that are complete the one
// that was completed last. Where updates are slower than gradients come, those that are left over
// lie between the others then, and wait in the next forward pass for one update each; with the
// first one first they would be the first layers', and forward would wait for all of them.

#include <algorithm>
#include <utility>

#include "daemon/grad_tracker.h"

namespace elixir::daemon {

void GradTracker::queue_early(uint32_t chunk) {
  chunks_[chunk].queued = true;
  early_queue_.push_back(chunk);
}

// It is updated now, or its gradients are about to change.
void GradTracker::unqueue_early(uint32_t chunk) {
  chunks_[chunk].queued = false;
  early_queue_.remove(chunk);
}

// Once no slot is left for them they are deferred.
void GradTracker::drop_those_without_slots() {
  for (uint32_t chunk = early_queue_.first(); chunk != ChunkList::kNone;) {
    const uint32_t behind = early_queue_.behind(chunk);
    if (!chunks_[chunk].has_slot) unqueue_early(chunk);
    chunk = behind;
  }
}

// With tasks that the chunks have already in this go, or with new ones.
void GradTracker::start_early(std::vector<ChunkTask>* tasks, EarlyLimits limits) {
  const size_t n_taken = tasks->size();
  if (limits.slots == 0) drop_those_without_slots();
  size_t at = n_taken;
  for (; limits.at_once > 0; --limits.at_once) {
    const uint32_t chunk = early_queue_.last();
    if (chunk == ChunkList::kNone) return;
    unqueue_early(chunk);
    Chunk& state = chunks_[chunk];
    if (!std::exchange(state.has_slot, true) && --limits.slots == 0) drop_those_without_slots();
    // Chunks that were taken in this go are queued in the order of their tasks, behind all others.
    while (at > 0 && (*tasks)[at - 1].chunk != chunk) --at;
    if (at == 0) tasks->push_back(start(chunk, /*squares=*/false, /*update=*/false));
    ChunkTask& task = at > 0 ? (*tasks)[at - 1] : tasks->back();
    task.early = state.early = true;
    task.of_sums = state.has_sum;
  }
}

}  // namespace elixir::daemon
