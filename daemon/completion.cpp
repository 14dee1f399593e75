// Data path, hop 5 of 6.
//
// The worker that finishes a chunk's last slice publishes the chunk to every rank; the one that
// finishes the last chunk of the step publishes the step.

#include "base/clock.h"
#include "daemon/job_work.h"
#include "shm/futex.h"

namespace elixir::daemon {

void JobWork::complete_slice(uint32_t chunk) {
  // Release: this worker's stores to the slice come before; acquire: whoever takes the counter to
  // zero has seen those of all workers. Partner: the same line in the other workers.
  std::atomic<uint32_t>& left = progress_[chunk].slices_left;
  if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) complete_chunk(chunk);
}

void JobWork::complete_chunk(uint32_t chunk) {
  const ChunkTask& task = tasks_[chunk];
  const auto now_ns = static_cast<uint64_t>(monotonic_ns());
  for (size_t rank = 0; rank < options_.ranks.size(); ++rank) {
    shm::ChunkRecord& record = options_.ranks[rank].memory->chunk_record(chunk);
    if (task.sum_up && (task.ranks >> rank & 1) != 0) {
      // Release: the slot has been read; partner: the acquire in client/session before it is
      // written again.
      record.grad_taken.store(revisions_[chunk * options_.ranks.size() + rank],
                              std::memory_order_release);
      shm::futex_wake_all(record.grad_taken);
    }
    if (task.update) {
      record.update_end_ns.store(now_ns, std::memory_order_relaxed);
      // Release; partner: the acquire in client/session before a gather.
      record.param_step.store(step_.step, std::memory_order_release);
      shm::futex_wake_all(record.param_step);
    }
  }
  // Acquire-release as above: the last chunk's worker has seen all chunks complete.
  if (chunks_left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  worked_ns_ += monotonic_ns() - begin_ns_;
  if (step_.completes_step) complete_step(step_.step, step_.updated_numel);
}

void JobWork::skip_step(uint32_t step) {
  for (uint32_t chunk = 0; chunk < options_.shape.n_chunks; ++chunk) {
    for (const RankMemory& rank : options_.ranks) {
      std::atomic<uint32_t>& param_step = rank.memory->chunk_record(chunk).param_step;
      // Release: the slot has been read; partner: the acquire in client/session.
      param_step.store(step, std::memory_order_release);
      shm::futex_wake_all(param_step);
    }
  }
  complete_step(step, 0);
}

void JobWork::complete_step(uint32_t step, uint64_t updated_numel) {
  update_ns_ = worked_ns_;
  worked_ns_ = 0;
  for (const RankMemory& rank : options_.ranks) {
    shm::StepResult& result = rank.memory->step_result(step);
    result.update_ns = static_cast<uint64_t>(update_ns_);
    result.updated_numel = updated_numel;
    // Release: the result is there; partner: the trainer's acquire of finished_step.
    rank.memory->header().finished_step.store(step, std::memory_order_release);
    shm::futex_wake_all(rank.memory->header().finished_step);
  }
}

}  // namespace elixir::daemon
