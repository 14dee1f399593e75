// Data path, hop 3 of 6, where updates are early: a chunk whose last gradients are in is updated
// into a spare slot while backward runs, with the scale that no clipping and no overflow would
// give. At the commit the verdict is that scale, and the slots are exchanged; or it is another, and
// the chunk is updated as deferred ones are, from its old states, which nothing has touched.

#include <algorithm>
#include <bit>
#include <utility>

#include "daemon/job.h"

namespace elixir::daemon {

EarlyLimits Job::early_limits() const {
  if (options_.rules.early == 0 || !early_.likely_to_count()) return {};
  // The post waits for those that were started: chunks of some milliseconds' work, and each time
  // the event loop hears that they are done.
  constexpr uint64_t kAtOnceNumel = uint64_t{1} << 20;
  const uint64_t numel = local_ranks() * options_.shape.shard_numel();
  return {.slots = slots_.n_spare(),
          .at_once = static_cast<uint32_t>(std::max<uint64_t>(kAtOnceNumel / numel, 1))};
}

// The tasks that are early have slots from here on, also where they are not made in the end.
void Job::begin_early_tasks() {
  for (ChunkTask& task : tasks_) {
    if (!task.early) continue;
    EarlyUpdates::Entry* const before = early_.find(task.chunk);
    if (before != nullptr) {
      if (std::exchange(before->counts, false)) updates_->undo(task.chunk);
      updates_->forget(task.chunk);  // other parameters may have gradients now
    }
    task.slot = early_.begin(task.chunk, slots_).slot;
  }
}

// Ranks may say other hyperparameters and groups until their posts, each in its own time: while
// they differ, or one of them is wrong, nothing is updated early. The post is what they are judged
// by.
void Job::open_early(uint32_t step) {
  for (ChunkTask& task : tasks_) {
    if (!task.early) continue;
    const bool agreed = open_step(step).text.empty() &&
                        read_groups(task.chunk, step, opened_->n_groups).text.empty();
    if (agreed) continue;
    early_.find(task.chunk)->counts = false;
    tracker_.forget_early(task.chunk);
    updates_->forget(task.chunk);
    task.early = false;
  }
}

void Job::undo_early(uint32_t chunk) {
  early_.find(chunk)->counts = false;
  updates_->undo(chunk);
  tracker_.forget_early(chunk);
}

// Those whose gradients have been published again do not count. `all`: none does.
void Job::settle_early(bool all) {
  for (const EarlyUpdates::Entry& entry : early_.entries()) {
    if (entry.counts && (all || !tracker_.early(entry.chunk))) undo_early(entry.chunk);
  }
}

// Before the post is checked, which reads once more what ranks say of chunks that do not count.
// `all`: states are about to change by another way than a step, or hyperparameters are others.
// Ranks of several nodes agree only before they post which parameters have a gradient anywhere.
void Job::drop_early(bool all) {
  settle_early(all);
  for (const EarlyUpdates::Entry& entry : early_.entries()) {
    if (entry.counts && !updates_->is_as_read(entry.chunk)) undo_early(entry.chunk);
    if (!entry.counts) updates_->forget(entry.chunk);
  }
  if (all && options_.rules.early != 0) opened_.reset();
}

// The verdict is what early updates were made with.
// Note: docs/design/elixir.md, "exact clipping".
bool Job::early_stands() const {
  return options_.rules.early != 0 && opened_ && !verdict_.skipped &&
         std::bit_cast<uint64_t>(verdict_.grad_scale) ==
             std::bit_cast<uint64_t>(opened_->grad_scale);
}

// Chunks move to where their new states are; what they leave is spare, unless a save still reads it
// (take_released).
void Job::take_early() {
  moved_.clear();
  for (const EarlyUpdates::Entry& entry : early_.entries()) {
    if (!entry.counts) {
      slots_.give_back(entry.slot);
      continue;
    }
    const uint32_t left = slots_.exchange(entry.chunk, entry.slot);
    const bool is_read = saving_ != nullptr && saving_->snapshot->hold(entry.chunk, left);
    if (!is_read) slots_.give_back(left);
    moved_.push_back(entry.chunk);
  }
  work_->publish_params(moved_, step_work_.step);
  early_.next_step();
}

}  // namespace elixir::daemon
