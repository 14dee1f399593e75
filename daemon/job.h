#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/grad_tracker.h"
#include "daemon/job_machine.h"
#include "daemon/job_work.h"
#include "daemon/session.h"
#include "optim_cpu/verdict.h"
#include "shm/parameter_table.h"

namespace elixir::daemon {

// What status reports of finished steps.
struct JobStatistics {
  uint64_t steps = 0;
  int64_t update_ns_last = 0;
  int64_t update_ns_sum = 0;
  std::vector<shm::StepRecord> records_last;  // by rank
  double metric_mean_last = 0;
  optim::Verdict verdict_last;
  uint64_t skipped = 0;
};

// A step that every rank has posted: squares that lack are taken, then the verdict is given and the
// chunks are updated.
enum class StepStage { kTaking, kUpdating };

// The ranks of one training on this node, counted from 0 to local_ranks here. Freed when no worker,
// background task or reservation uses its memory.
struct Job {
  Job(const shm::Shape& shape_of_job, const GradTracker::Rules& rules)
      : shape(shape_of_job),
        local_ranks(rules.ranks),
        machine(shape.type, local_ranks, {shape.n_chunks, shape.n_frozen_chunks},
                shape.exchange == shm::Exchange::kHost ? 1 : local_ranks),
        tracker(rules),
        sessions(local_ranks, nullptr) {
    tasks.reserve(shape.n_chunks);
  }

  uint64_t id = 0;
  std::string name;
  const shm::Shape shape;
  const uint32_t local_ranks;
  uint64_t table_bytes = 0;
  uint64_t table_xxh64 = 0;
  std::vector<shm::ParameterPlace> places;  // ascending names
  uint64_t numel = 0;                       // parameters, without padding
  uint64_t updated_numel = 0;               // of them, those that elixird updates here
  uint32_t workers = 0;                     // at most so many threads; 0: all
  int64_t phase_since_ns = 0;               // when it began, or when its last rank attached
  uint32_t n_param_groups = 1;
  JobMachine machine;
  GradTracker tracker;
  std::vector<Session*> sessions;  // by local rank; null: not claimed yet
  std::vector<std::unique_ptr<Session>> owned_sessions;
  uint32_t reservations = 0;       // background tasks that make memory for it
  uint64_t need_bytes = 0;         // of all local ranks
  uint64_t reserved_bytes = 0;     // of those whose memory is there
  uint64_t filling_bytes() const;  // filled already of those whose memory is on its way
  bool closed_to_new_writers = false;
  std::vector<uint32_t> group_of_rank;
  std::unique_ptr<JobWork> work;  // once all ranks have attached
  std::vector<ChunkTask> tasks;   // those in flight; capacity for all chunks

  // The step in flight, or, of an open one, the one that comes next.
  StepStage stage = StepStage::kTaking;
  StepWork step_work;
  std::vector<shm::StepRecord> records;  // copies, by rank
  // Immediate updates: what the ranks had announced when the first chunk was ready.
  std::optional<shm::StepRecord> opened;
  optim::Verdict verdict;
  double metric_mean = 0;
  uint64_t applied = 0;  // steps that were not skipped

  JobStatistics statistics;
};

}  // namespace elixir::daemon
