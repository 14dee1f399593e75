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

// Its gradients have become such as wait for the post.
void GradTracker::unqueue_early(uint32_t chunk) {
  chunks_[chunk].queued = false;
  early_queue_.remove(chunk);
}

// The last in the queue whose gradients are not about to change.
std::optional<uint32_t> GradTracker::next_early() const {
  uint32_t chunk = early_queue_.last();
  while (chunk != ChunkList::kNone && chunks_[chunk].fresh != 0) chunk = early_queue_.before(chunk);
  return chunk == ChunkList::kNone ? std::nullopt : std::optional(chunk);
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
  for (; limits.at_once > 0; --limits.at_once) {
    const std::optional<uint32_t> next = next_early();
    if (!next) return;
    const uint32_t chunk = *next;
    unqueue_early(chunk);
    Chunk& state = chunks_[chunk];
    if (!std::exchange(state.has_slot, true) && --limits.slots == 0) drop_those_without_slots();
    // Those that are queued last were taken last.
    size_t at = n_taken;
    while (at > 0 && (*tasks)[at - 1].chunk != chunk) --at;
    if (at == 0) tasks->push_back(start(chunk, /*squares=*/false, /*update=*/false));
    ChunkTask& task = at > 0 ? (*tasks)[at - 1] : tasks->back();
    task.early = state.early = true;
    task.of_sums = state.has_sum;
  }
}

}  // namespace elixir::daemon
