// Data path, hop 5 of 6.
//
// The worker that finishes a chunk's last slice publishes the chunk to every rank; the one that
// finishes the last chunk of the step publishes the step.

#include "base/check.h"
#include "base/clock.h"
#include "daemon/job_work.h"
#include "shm/futex.h"

namespace elixir::daemon {

void JobWork::complete_slice(uint32_t chunk) {
  // Release: this worker's stores to the slice come before; acquire: whoever takes the counter to
  // zero has seen those of all workers. Partner: the same line in the other workers.
  std::atomic<uint32_t>& left = progress_[chunk].slices_left;
  const uint32_t before = left.fetch_sub(1, std::memory_order_acq_rel);
  ELIXIR_CHECK(before > 0, "chunk {} has had all its slices", chunk);
  if (before == 1) complete_chunk(chunk);
}

void JobWork::complete_chunk(uint32_t chunk) {
  const ChunkTask& task = tasks_[chunk];
  if (task.copy) snapshot_->copied(chunk);
  if (task.sum_up || task.dropped != 0) publish_sum(chunk);
  if (task.update) publish_update(chunk);
  if (task.out_of_place()) note_times(chunk);  // whoever waits for the update hears of it later
  // Acquire-release as above: the last chunk's worker has seen all chunks complete.
  const uint32_t before = chunks_left_.fetch_sub(1, std::memory_order_acq_rel);
  ELIXIR_CHECK(before > 0, "chunk {} is complete, and no chunk was left", chunk);
  if (before != 1) return;
  worked_ns_ += monotonic_ns() - begin_ns_;
  if (step_.completes_step) complete_step(step_);
}

void JobWork::publish_sum(uint32_t chunk) {
  const ChunkTask& task = tasks_[chunk];
  const uint64_t ranks = (task.sum_up ? task.ranks : 0) | task.dropped;
  for (size_t rank = 0; rank < options_.ranks.size(); ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    // Release: the slot has been read; partner: the acquire in client/session before it is written
    // again.
    options_.ranks[rank].memory->chunk_record(chunk).grad_taken.store(
        revisions_[chunk * options_.ranks.size() + rank], std::memory_order_release);
  }
  shm::fence_before_wakes();
  for (size_t rank = 0; rank < options_.ranks.size(); ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    const shm::ChunkRecord& record = options_.ranks[rank].memory->chunk_record(chunk);
    shm::wake_waiters(record.grad_taken, record.waiters);
  }
}

void JobWork::note_times(uint32_t chunk) {
  const uint64_t begin_ns = progress_[chunk].update_begin_ns.load(std::memory_order_relaxed);
  const auto end_ns = static_cast<uint64_t>(monotonic_ns());
  // All at once: one after the other, the lines' way here would be most of the time.
  for (const RankMemory& rank : options_.ranks) {
    __builtin_prefetch(&rank.memory->chunk_record(chunk), /*rw=*/1);
  }
  for (const RankMemory& rank : options_.ranks) {
    shm::ChunkRecord& record = rank.memory->chunk_record(chunk);
    record.update_begin_ns.store(begin_ns, std::memory_order_relaxed);
    record.update_end_ns.store(end_ns, std::memory_order_relaxed);
  }
}

void JobWork::publish_update(uint32_t chunk) {
  note_times(chunk);
  publish_params({&chunk, 1}, step_.step);
}

void JobWork::publish_params(std::span<const uint32_t> chunks, uint32_t step) {
  for (const uint32_t chunk : chunks) {
    const uint32_t slot = options_.slots->of(chunk);
    for (const RankMemory& rank : options_.ranks) {
      shm::ChunkRecord& record = rank.memory->chunk_record(chunk);
      record.slot.store(slot, std::memory_order_relaxed);
      // Release: the slot's number, and what the workers wrote there; partner: the acquire in
      // client/session before a gather.
      record.param_step.store(step, std::memory_order_release);
    }
  }
  shm::fence_before_wakes();
  for (const uint32_t chunk : chunks) {
    for (const RankMemory& rank : options_.ranks) {
      const shm::ChunkRecord& record = rank.memory->chunk_record(chunk);
      shm::wake_waiters(record.param_step, record.waiters);
    }
  }
}

// One word a rank. Who sleeps on a chunk's param_step sees that move, too.
void JobWork::skip_step(const StepWork& work) {
  const uint32_t step = work.step;
  ELIXIR_CHECK(chunks_left() == 0, "step {} is skipped while {} tasks are in flight", step,
               chunks_left());
  for (const RankMemory& rank : options_.ranks) {
    // Release: the slots have been read; partner: the acquire in client/session.
    rank.memory->header().skipped_through.store(step, std::memory_order_release);
  }
  shm::fence_before_wakes();
  for (const RankMemory& rank : options_.ranks) {
    // The trainer's word: a search more or less. Acquire: who counted itself here had counted
    // itself on its chunk; partner: the fence in shm::Waiter.
    if (rank.memory->header().param_waiters.load(std::memory_order_acquire) == 0) continue;
    // To the last chunk: a chunk's count is also of those that sleep on its other words, so it does
    // not say how many are still to be found.
    for (uint32_t chunk = 0; chunk < options_.shape.n_chunks; ++chunk) {
      shm::ChunkRecord& record = rank.memory->chunk_record(chunk);
      if (record.waiters.load(std::memory_order_relaxed) == 0) continue;
      record.param_step.store(step, std::memory_order_release);
      shm::futex_wake_all(record.param_step);
    }
  }
  complete_step(work);
}

void JobWork::tell_updates() {
  if (!options_.shape.tells_updates()) return;
  for (const RankMemory& rank : options_.ranks) {
    shm::UpdateCount* const counts = rank.memory->update_counts();
    for (uint32_t i = 0; i < options_.shape.n_parameters; ++i) {
      // Relaxed: finished_step releases it, or the answer to who asked for a load.
      counts[i].store(static_cast<uint32_t>(options_.updates->updates(i)),
                      std::memory_order_relaxed);
    }
  }
}

void JobWork::complete_step(const StepWork& work) {
  const uint32_t step = work.step;
  update_ns_ = worked_ns_;
  worked_ns_ = 0;
  tell_updates();
  for (const RankMemory& rank : options_.ranks) {
    shm::UpdateResult& result = rank.memory->update_result(step);
    result.step = step;
    result.update_ns = static_cast<uint64_t>(update_ns_);
    result.updated_numel = work.updated_numel;
    result.early_chunks = work.early_chunks;
    result.early_hits = work.early_hits;
    result.swing_chunks = work.swing_chunks;
    // Release: the result is there; partner: the trainer's acquire of finished_step.
    rank.memory->header().finished_step.store(step, std::memory_order_release);
  }
  shm::fence_before_wakes();
  for (const RankMemory& rank : options_.ranks) {
    const shm::ControlHeader& header = rank.memory->header();
    shm::wake_waiters(header.finished_step, header.waiters);
  }
}

}  // namespace elixir::daemon
