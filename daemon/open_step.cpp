// What ranks say of a step before its first gradient, where updates do not wait for the post.

#include <algorithm>

#include "daemon/job.h"

namespace elixir::daemon {
namespace {

// What ranks said of a step that they opened, before their first gradients of it. Of one that is
// absent nothing is known.
StepViolation check_open_steps(const Sessions& sessions, const GradTracker& tracker,
                               uint32_t step) {
  for (const auto& session : sessions) {
    if (tracker.absent(session->local_rank)) continue;
    // Acquire: the hyperparameters written before it; partner: the release in client/session.
    const uint32_t open = session->memory->header().open_step.load(std::memory_order_acquire);
    if (open >= step && open - step <= kMaxStepsAhead) continue;
    return {session->local_rank,
            fmt::format("open_step is {} while gradients of step {} are published: early and "
                        "immediate updates need the hyperparameters first",
                        open, step)};
  }
  return {};
}

// One of an absent rank counts as another's.
void copy_open_records(const Sessions& sessions, const GradTracker& tracker, uint32_t step,
                       std::vector<shm::StepRecord>* copies) {
  std::vector<shm::StepRecord>& records = *copies;
  records.clear();
  for (const auto& session : sessions) {
    records.push_back(session->memory->copy_step_record(step));
  }
  uint32_t present = 0;
  while (present + 1 < records.size() && tracker.absent(present)) ++present;
  for (uint32_t rank = 0; rank < records.size(); ++rank) {
    if (tracker.absent(rank)) records[rank] = records[present];
  }
}

}  // namespace

// What the ranks have announced is what updates of this step are made with, from the first of them
// on.
StepViolation Job::open_step(uint32_t step) {
  if (opened_) return {};
  StepViolation violation = check_open_steps(sessions_, tracker_, step);
  copy_open_records(sessions_, tracker_, step, &open_records_);
  const std::vector<shm::StepRecord>& records = open_records_;
  if (violation.text.empty()) {
    violation = check_step_records(records, step, options_.shape.n_moments);
  }
  if (violation.text.empty() && options_.rules.immediate != 0) {
    violation = check_immediate(records, nullptr);
  }
  if (!violation.text.empty()) return violation;
  opened_ = records[0];
  updates_->begin(records[0], applied_ + 1, records[0].grad_scale);
  return {};
}

StepViolation Job::open_immediate(uint32_t step) {
  // Of a chunk that only tells who waits that its gradients were dropped, some ranks may have none.
  const bool takes = std::any_of(tasks_.begin(), tasks_.end(),
                                 [](const ChunkTask& task) { return task.ranks != 0; });
  StepViolation violation = takes ? open_step(step) : StepViolation();
  for (const ChunkTask& task : tasks_) {
    if (!violation.text.empty()) break;
    if (task.update) violation = read_groups(task.chunk, step, opened_->n_groups);
  }
  return violation;
}

}  // namespace elixir::daemon
