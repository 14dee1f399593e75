// Data path, hop 5 of 6.
//
// The worker that finishes a chunk's last slice publishes the chunk to every rank; the one that
// finishes the last chunk publishes the step.

#include "base/clock.h"
#include "daemon/job_work.h"
#include "shm/futex.h"

namespace elixir::daemon {

void JobWork::complete_slice(uint32_t chunk) {
  // Release: this worker's stores to the slice come before; acquire: whoever takes the counter to
  // zero has seen those of all workers. Partner: the same line in the other workers.
  if (slices_left_[chunk].fetch_sub(1, std::memory_order_acq_rel) == 1) complete_chunk(chunk);
}

void JobWork::complete_chunk(uint32_t chunk) {
  for (const RankMemory& rank : options_.ranks) {
    std::atomic<uint32_t>& param_step = rank.memory->chunk_record(chunk).param_step;
    // Release; partner: the acquire in client/session before a gather.
    param_step.store(step_, std::memory_order_release);
    shm::futex_wake_all(param_step);
  }
  // Acquire-release as above: the last chunk's worker has seen all chunks complete.
  if (chunks_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) complete_step();
}

void JobWork::complete_step() {
  update_ns_ = monotonic_ns() - commit_ns_;
  for (const RankMemory& rank : options_.ranks) {
    shm::StepResult& result = rank.memory->step_result(step_);
    result.update_ns = static_cast<uint64_t>(update_ns_);
    result.updated_numel = options_.numel;
    // Release: the result is there; partner: the trainer's acquire of finished_step.
    rank.memory->header().finished_step.store(step_, std::memory_order_release);
    shm::futex_wake_all(rank.memory->header().finished_step);
  }
}

}  // namespace elixir::daemon
