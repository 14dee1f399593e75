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
  std::erase(early_queue_, chunk);
}

// The last in the queue whose gradients are not about to change.
std::optional<size_t> GradTracker::next_early() const {
  for (size_t i = early_queue_.size(); i-- > 0;) {
    if (chunks_[early_queue_[i]].fresh == 0) return i;
  }
  return std::nullopt;
}

// Once no slot is left for them they are deferred.
void GradTracker::drop_those_without_slots() {
  std::erase_if(early_queue_, [&](uint32_t chunk) {
    if (chunks_[chunk].has_slot) return false;
    chunks_[chunk].queued = false;
    return true;
  });
}

// With tasks that the chunks have already in this go, or with new ones.
void GradTracker::start_early(std::vector<ChunkTask>* tasks, EarlyLimits limits) {
  const size_t n_taken = tasks->size();
  if (limits.slots == 0) drop_those_without_slots();
  for (; limits.at_once > 0; --limits.at_once) {
    const std::optional<size_t> next = next_early();
    if (!next) return;
    const uint32_t chunk = early_queue_[*next];
    early_queue_.erase(early_queue_.begin() + static_cast<ptrdiff_t>(*next));
    Chunk& state = chunks_[chunk];
    state.queued = false;
    if (!std::exchange(state.has_slot, true) && --limits.slots == 0) drop_those_without_slots();
    const auto end = tasks->begin() + static_cast<ptrdiff_t>(n_taken);
    auto task = std::find_if(tasks->begin(), end,
                             [&](const ChunkTask& taken) { return taken.chunk == chunk; });
    if (task == end) {
      tasks->push_back(start(chunk, /*squares=*/false, /*update=*/false));
      task = std::prev(tasks->end());
    }
    task->early = state.early = true;
    task->of_sums = state.has_sum;
  }
}

}  // namespace elixir::daemon
