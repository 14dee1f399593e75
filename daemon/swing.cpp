// Data path, hops 4 and 5 of 6, of swing chunks: after the verdict each rank's trainer updates its
// shards of them, out of place, in memory that both map. elixird says when it may, looks at what it
// says, and publishes the chunk once every rank has. What a rank that is gone has left undone, the
// workers do, from the same gradients and states: the step stays a commit.

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.h"
#include "daemon/job.h"
#include "shm/futex.h"

namespace elixir::daemon {

// Of the step that is committed. Of tasks_ those of swing chunks stay that have something to sum.
void Job::begin_swings() {
  const uint32_t step = step_work_.step;
  swings_.begin(step);
  swing_moved_ns_ = 0;
  for (ChunkTask& task : tasks_) {
    if (!options_.shape.swings(task.chunk)) continue;
    task.update = false;
    swings_.note_sums(task.chunk, task.of_sums, /*awaits=*/task.sum_up);
    updates_->update(task.chunk);
    tell_swing_parameters(task.chunk);
  }
  std::erase_if(tasks_, [](const ChunkTask& task) { return !task.update && !task.sum_up; });
}

// Hyperparameters are the ranks' own, which all have alike.
void Job::tell_swing_parameters(uint32_t chunk) {
  for (const ParameterUpdates::Start& start : updates_->starts(chunk)) {
    const auto count = static_cast<uint32_t>(updates_->updates_of_part(start.part));
    for (const auto& session : sessions_) {
      shm::SwingParameter& parameter = session->memory->swing_parameter(start.parameter);
      // Relaxed: swing_step of the chunk releases it.
      parameter.group.store(updates_->said(start.part), std::memory_order_relaxed);
      parameter.updates.store(count, std::memory_order_relaxed);
    }
  }
}

// Where the chunk goes in the step in flight: to the slot that the one before it in its lane
// leaves, in this step or an earlier one. A save may still read there.
StateSlots::Lane Job::swing_target(uint32_t chunk) const {
  const shm::Shape& shape = options_.shape;
  const uint32_t before = chunk - shape.n_swing_lanes;
  const bool first = chunk < shape.first_swing() + shape.n_swing_lanes;
  if (first || swings_.is_next(chunk)) return slots_.lane(shape.swing_lane(chunk));
  return {slots_.of(before), before};
}

// Tells trainers which swing chunks they may update: all, as a rule at once.
void Job::open_swings() {
  if (!swings_.begun() || swings_.over()) return;
  const uint32_t step = swings_.step();
  bool held = false;
  opened_swings_.clear();
  for (uint32_t chunk; (chunk = swings_.first_to_open()) < swings_.end();) {
    const StateSlots::Lane to = swing_target(chunk);
    held = saving_ != nullptr && to.left_by != StateSlots::kNobody &&
           saving_->snapshot->hold(to.left_by, to.slot);
    if (held) break;  // those behind it in its lane go where it leaves, after it
    swings_.open(chunk);
    opened_swings_.push_back(chunk);
  }
  if (held || !has_tasks()) count_hold(held);
  for (const uint32_t chunk : opened_swings_) {
    for (const auto& session : sessions_) {
      shm::ChunkRecord& record = session->memory->chunk_record(chunk);
      record.swing_sums.store(swings_.of_sums(chunk) ? 1 : 0, std::memory_order_relaxed);
      // Release: the sums, what is said of parameters, the word above, the verdict; partner: the
      // acquire in client/session.
      record.swing_step.store(step, std::memory_order_release);
    }
  }
  shm::fence_before_wakes();
  for (const uint32_t chunk : opened_swings_) {
    for (const auto& session : sessions_) {
      const shm::ChunkRecord& record = session->memory->chunk_record(chunk);
      shm::wake_waiters(record.swing_step, record.waiters);
    }
  }
}

void Job::heard_swing(Session& session) {
  look_at_swings(session);
  go_on_with_swings();
}

// Its records from the first chunk on that it has not updated, as far as its lanes may be. Nothing
// of what it wrote is used but whether it is what it must be.
void Job::look_at_swings(Session& session) {
  // Of a rank that is gone workers make the updates, whatever it still writes.
  if (!swings_.begun() || session.memory == nullptr || session.socket < 0) return;
  const uint32_t rank = session.local_rank;
  uint32_t missing = 0;
  for (uint32_t chunk = swings_.first_missing(rank);
       chunk < swings_.end() && missing < options_.shape.n_swing_lanes; ++chunk) {
    if (swings_.has(rank, chunk)) continue;
    const shm::SwingRecord& record = session.memory->swing_record(chunk);
    // Acquire: the slot's number, and the states there; partner: the release in client/session.
    const uint32_t step = record.step.load(std::memory_order_acquire);
    if (!swings_.note(rank, chunk, step)) {
      return swing_violation(
          session, fmt::format("its update of swing chunk {} is of step {}, while step {} is {}",
                               chunk, step, swings_.step(),
                               swings_.is_open(chunk) ? "in flight" : "not open for the chunk"));
    }
    missing = swings_.has(rank, chunk) ? 0 : missing + 1;
    if (missing > 0) continue;
    // The rank may be ahead of others in its lane: the target is that of the chunks between.
    const uint32_t slot = record.slot.load(std::memory_order_relaxed);
    const uint32_t target = swing_target(chunk).slot;
    if (slot == target) continue;
    return swing_violation(
        session,
        fmt::format("its update of swing chunk {} is in slot {}, not {}", chunk, slot, target));
  }
  publish_swings();
}

// The rank's states are worth nothing any more.
void Job::swing_violation(Session& session, const std::string& what) {
  give_up_swings();
  end_session(session, Status(Code::kProtocol, what));
  go_on_with_swings();
}

void Job::publish_swings() {
  published_swings_.clear();
  for (uint32_t lane = 0; lane < options_.shape.n_swing_lanes; ++lane) {
    for (uint32_t chunk; (chunk = swings_.next_in_lane(lane)) < swings_.end();) {
      if (!swings_.may_publish(chunk)) break;
      swings_.publish(chunk);
      slots_.swing(chunk, lane);
      published_swings_.push_back(chunk);
    }
  }
  if (published_swings_.empty()) return;
  swing_moved_ns_ = 0;
  work_->publish_params(published_swings_, swings_.step());
}

// Ranks that will not update theirs any more, a bit each.
uint64_t Job::gone_ranks() const {
  uint64_t gone = 0;
  for (const auto& session : sessions_) {
    if (session->socket < 0) gone |= uint64_t{1} << session->local_rank;
  }
  return gone;
}

// The workers update what gone ranks have left, a chunk a lane at a time, into the slots into which
// the ranks would have: one that died has half an update there at most. REQUIRES: workers have
// nothing in hand.
void Job::take_over_swings() {
  const uint64_t gone = gone_ranks();
  if (gone == 0) return;
  for (uint32_t lane = 0; lane < options_.shape.n_swing_lanes; ++lane) {
    const uint32_t chunk = swings_.next_in_lane(lane);
    if (chunk >= swings_.end() || !swings_.is_open(chunk)) continue;
    const uint64_t ranks = swings_.missing(chunk) & gone;
    if (ranks == 0) continue;
    ChunkTask task;
    task.chunk = chunk;
    task.of_sums = swings_.of_sums(chunk);
    task.swing = true;
    task.slot = swing_target(chunk).slot;
    task.owners = ranks;
    step_work_.updated_numel += updates_->updated_numel(chunk, ranks);
    tasks_.push_back(task);
  }
  if (tasks_.empty()) return;
  taken_over_.assign(tasks_.begin(), tasks_.end());
  log_info("swing_takeover", "job='{}' step={} chunks={}", options_.name, swings_.step(),
           tasks_.size());
  submit_tasks(/*completes_step=*/false);
}

void Job::give_up_swings() {
  if (swings_.over()) return;
  log_warn("swing_given_up", "job='{}' step={} chunks={}", options_.name, swings_.step(),
           swings_.left());
  swings_.give_up();
}

// Workers have given back what they had. The update of a step with swing chunks is over once they
// and all trainers are done; true: it is.
bool Job::end_swings() {
  for (const ChunkTask& task : taken_over_) swings_.take_over(task.chunk, task.owners);
  taken_over_.clear();
  swings_.sums_are_there();
  publish_swings();
  open_swings();
  if (!swings_.over()) {
    take_over_swings();
    return false;
  }
  swings_.end_step();
  if (!swings_.given_up()) work_->complete_step(step_work_);
  step_done();
  return true;
}

// Something has happened that they may have waited for.
void Job::go_on_with_swings() {
  const bool updates = machine_.activity() == Activity::kStep && stage_ == StepStage::kUpdating;
  if (!updates || !swings_.begun() || over_) return;
  open_swings();
  if (submitted_ || has_tasks() || !end_swings()) return;
  note_grads_of_next_step();
  advance();
  end_if_possible();
}

// A live rank that does not update what it promised is waited for, then not any more: with the job
// already ending for ten seconds, else as long as for an attach.
void Job::check_swings(int64_t now_ns, uint32_t limit_s) {
  if (!swings_.begun() || swings_.over()) return;
  constexpr uint32_t kEndingLimitS = 10;
  const bool ending = phase() == JobPhase::kEnding;
  if (swing_moved_ns_ == 0) swing_moved_ns_ = now_ns;
  uint64_t late = 0;
  for (uint32_t chunk = swings_.first(); late == 0 && chunk < swings_.end(); ++chunk) {
    if (swings_.is_open(chunk)) late = swings_.missing(chunk) & ~gone_ranks();
  }
  if (late == 0) swing_moved_ns_ = now_ns;  // a save holds them, or workers are at it
  const uint32_t seconds = ending ? std::min(limit_s, kEndingLimitS) : limit_s;
  if (now_ns - swing_moved_ns_ <= int64_t{seconds} * 1'000'000'000) return;
  const Session& session = *sessions_[static_cast<size_t>(std::countr_zero(late))];
  give_up_swings();
  if (ending) return go_on_with_swings();
  fail(fault_of_all(Code::kTimedOut, session.local_rank,
                    fmt::format("rank {} has not updated its part of swing chunks of step {} for "
                                "{} s, so the weights in memory belong to two steps: is it "
                                "stopped? (elixird --attach-timeout-s raises the limit)",
                                session.rank, swings_.step(), limit_s)));
  go_on_with_swings();
}

}  // namespace elixir::daemon
