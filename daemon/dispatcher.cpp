// Data path, hop 3 of 6.
//
// Gradients that every rank has published are summed up early, where the job wants it. A step that
// every rank has posted is checked, judged, committed, and handed to the workers as the slices cut
// at attach.

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/step_check.h"
#include "shm/futex.h"

namespace elixir::daemon {
namespace {

Publication read_publication(const shm::ChunkRecord& record) {
  Publication publication;
  // Acquire: the step, the round and the gradients written before it; partner: the release in
  // client/session.
  publication.revision = record.grad_revision.load(std::memory_order_acquire);
  publication.step = record.grad_step.load(std::memory_order_relaxed);
  publication.round = record.grad_round.load(std::memory_order_relaxed);
  return publication;
}

std::vector<shm::StepRecord> copy_records(const Job& job, uint32_t step) {
  std::vector<shm::StepRecord> records;
  for (const Session* session : job.sessions) {
    records.push_back(session->memory->copy_step_record(step));
  }
  return records;
}

// What ranks said of a step that they opened, before their first gradients of it.
StepViolation check_opened(const Job& job, std::span<const shm::StepRecord> records,
                           uint32_t step) {
  for (const Session* session : job.sessions) {
    // Acquire: the hyperparameters written before it; partner: the release in client/session.
    const uint32_t open = session->memory->header().open_step.load(std::memory_order_acquire);
    if (open < step || open - step > kMaxStepsAhead) {
      return {session->local_rank,
              fmt::format("open_step is {} while gradients of step {} are published: immediate "
                          "updates need the hyperparameters first",
                          open, step)};
    }
  }
  const StepViolation violation = check_step_records(records, step, job.n_param_groups);
  return violation.text.empty() ? check_immediate(records, nullptr) : violation;
}

void set_constants(const shm::StepRecord& record, uint64_t number, double grad_scale,
                   StepWork* work) {
  for (uint32_t group = 0; group < record.n_groups; ++group) {
    work->constants[group] = optim::make_adam_step(adam_options(record, group), number, grad_scale);
  }
}

}  // namespace

void Daemon::look_at_posted(Session& session) {
  Job& job = *session.job;
  if (session.memory == nullptr) return;
  // Acquire: the StepRecord written before it; partner: the release in client/session.
  const uint32_t posted = session.memory->header().posted_step.load(std::memory_order_acquire);
  if (posted == job.machine.posted_step(session.local_rank)) return;
  const Status status = job.machine.note_posted(session.local_rank, posted);
  if (!status.ok()) return end_session(session, status);
  if (posted == job.tracker.step()) {
    // What it published before the post is there, though its doorbells may be on their way still: a
    // chunk that was not looked at would count as one without gradients.
    const Status looked = look_at_all_grads(session);
    if (!looked.ok()) return end_session(session, looked);
    job.tracker.note_posted(session.local_rank);
  }
  advance(job);
  if (std::optional<Fault> fault = job.machine.waiting_for_detached()) {
    fail_job(job, std::move(*fault));
  }
}

// Starts what can be started; at most one activity of a job is in flight.
void Daemon::advance(Job& job) {
  while (start_next(job)) {
  }
}

// True when what it started is over already.
bool Daemon::start_next(Job& job) {
  const NextActivity next = job.machine.start_next(job.tracker.anything_ready());
  switch (next.activity) {
    case Activity::kNone:
      return false;
    case Activity::kLoad:
      job.work->begin_load(next.load.rank, next.load.chunk, next.load.part);
      pool_->submit(job.work.get());
      return false;
    case Activity::kTake:
      take_ready(job);
      return false;
    case Activity::kStep:
      return begin_step(job, next.step) && job.machine.activity() == Activity::kNone;
  }
  return false;
}

void Daemon::submit_tasks(Job& job, bool completes_step) {
  job.step_work.completes_step = completes_step;
  job.work->begin_tasks(job.tasks, job.step_work, job.tracker, monotonic_ns());
  pool_->submit(job.work.get());
}

// ---- before the post ----

Status Daemon::look_at_grads(Session& session, uint32_t chunk) {
  Job& job = *session.job;
  if (chunk >= job.shape.n_chunks) {
    return error(Code::kProtocol, "gradients of chunk {} of {}", chunk, job.shape.n_chunks);
  }
  if (!job.tracker.rules().early() || job.machine.phase() != JobPhase::kTraining) return Status();
  return job.tracker.note(session.local_rank, chunk,
                          read_publication(session.memory->chunk_record(chunk)));
}

// All chunks, without their doorbells: shared memory is the truth.
Status Daemon::look_at_all_grads(Session& session) {
  const Job& job = *session.job;
  if (!job.tracker.rules().early() || job.machine.phase() != JobPhase::kTraining) return Status();
  for (uint32_t chunk = 0; chunk < job.shape.n_chunks; ++chunk) {
    ELIXIR_RETURN_IF_ERROR(look_at_grads(session, chunk));
  }
  return Status();
}

// Chunks that all ranks have published: the sums of this round, their squares, and immediate
// updates after the last one.
void Daemon::take_ready(Job& job) {
  const uint32_t step = job.tracker.step();
  if (job.tracker.rules().immediate && !job.opened) {
    const std::vector<shm::StepRecord> records = copy_records(job, step);
    const StepViolation violation = check_opened(job, records, step);
    if (!violation.text.empty()) {
      job.machine.finish_activity();
      return end_session(*job.sessions[violation.rank], Status(Code::kProtocol, violation.text));
    }
    job.opened = records[0];
    set_constants(records[0], job.applied + 1, records[0].grad_scale, &job.step_work);
  }
  job.step_work.step = step;
  job.tracker.start_ready(&job.tasks);
  submit_tasks(job, /*completes_step=*/false);
}

// ---- from the post on ----

StepViolation Daemon::check_post(Job& job, uint32_t step) {
  const GradTracker::Rules& rules = job.tracker.rules();
  StepViolation violation = check_step_records(job.records, step, job.n_param_groups);
  if (violation.text.empty() && rules.immediate) {
    violation = check_immediate(job.records, job.opened ? &*job.opened : nullptr);
  }
  const bool collective = job.shape.exchange == shm::Exchange::kCollective;
  if (violation.text.empty() && collective && verdict_terms(job.records[0]).needs_norm()) {
    violation = check_equal_norms(job.records);
  }
  for (const Session* session : job.sessions) {
    for (uint32_t chunk = 0; violation.text.empty() && chunk < rules.n_chunks; ++chunk) {
      const uint32_t rank = session->local_rank;
      const Publication published = read_publication(session->memory->chunk_record(chunk));
      const Status status = job.tracker.note(rank, chunk, published);
      if (!status.ok()) {
        violation = {rank, status.message()};
      } else if (job.tracker.noted(rank, chunk).step != step) {
        violation = {rank, fmt::format("step {} posted with the gradients of step {} (revision {}) "
                                       "in chunk {}",
                                       step, published.step, published.revision, chunk)};
      }
    }
  }
  const Status discards = job.tracker.check_discards();
  if (violation.text.empty() && !discards.ok()) violation = {0, discards.message()};
  return violation;
}

// False when a rank broke the rules; its session is then over.
bool Daemon::begin_step(Job& job, uint32_t step) {
  job.records = copy_records(job, step);
  const StepViolation violation = check_post(job, step);
  if (!violation.text.empty()) {
    job.machine.refuse_step();
    end_session(*job.sessions[violation.rank], Status(Code::kProtocol, violation.text));
    return false;
  }
  job.metric_mean = mean_metric(job.records);
  job.step_work.step = step;
  job.tasks.clear();
  if (job.shape.exchange == shm::Exchange::kHost && verdict_terms(job.records[0]).needs_norm()) {
    job.tracker.start_squares(&job.tasks);
  }
  job.stage = StepStage::kTaking;
  if (job.tasks.empty()) {
    commit_step(job);
  } else {
    submit_tasks(job, /*completes_step=*/false);
  }
  return true;
}

optim::Verdict Daemon::judge_step(const Job& job) const {
  const optim::VerdictTerms terms = verdict_terms(job.records[0]);
  optim::Verdict verdict;
  verdict.grad_scale = terms.grad_scale;
  if (!terms.needs_norm()) return verdict;
  if (job.shape.exchange == shm::Exchange::kCollective) {
    return optim::judge(job.records[0].norm, terms);
  }
  NormSum squares = job.work->squares();
  for (const shm::StepRecord& record : job.records) add(squares, record.norm);
  return optim::judge(squares, terms);
}

// Every rank has posted it and its norm is known: what becomes of it is told, and done.
void Daemon::commit_step(Job& job) {
  const uint32_t step = job.step_work.step;
  job.stage = StepStage::kUpdating;
  job.verdict = judge_step(job);
  if (!job.verdict.skipped) ++job.applied;
  // A skipped step has no number.
  if (!job.verdict.skipped) {
    set_constants(job.records[0], job.applied, job.verdict.grad_scale, &job.step_work);
  }
  for (const Session* session : job.sessions) {
    shm::StepResult& result = session->memory->step_result(step);
    result.step = step;
    result.skipped = job.verdict.skipped ? 1 : 0;
    result.metric_mean = job.metric_mean;
    result.grad_norm = job.verdict.grad_norm;
    result.grad_scale = job.verdict.grad_scale;
    result.applied = job.applied;
    std::atomic<uint32_t>& committed = session->memory->header().committed_step;
    // Release: the result; partner: the trainer's acquire of committed_step.
    committed.store(step, std::memory_order_release);
    shm::futex_wake_all(committed);
  }
  job.tracker.start_updates(&job.tasks);
  job.tracker.next_step();  // before a worker lets a trainer publish it
  job.opened.reset();
  if (!job.verdict.skipped && !job.tasks.empty()) return submit_tasks(job, true);
  if (job.verdict.skipped) {
    job.work->skip_step(step);
  } else {
    job.work->complete_step(step, job.work->numel());  // there is nothing left to update
  }
  on_step_done(job);
}

// Holds the ranks of this node together where they exchange by themselves (chunks of home gpu).
Status Daemon::look_at_barrier(Session& session) {
  Job& job = *session.job;
  if (session.memory == nullptr) return Status();
  // Acquire: what the rank wrote before it came; partner: the release in client/session.
  const uint32_t arrived = session.memory->header().barrier_arrived.load(std::memory_order_acquire);
  const Result<bool> all = job.machine.note_barrier(session.local_rank, arrived);
  if (!all.ok()) return all.status();
  if (*all) {
    for (const Session* rank : job.sessions) {
      std::atomic<uint32_t>& passed = rank->memory->header().barrier_passed;
      // Release: hands on what every rank wrote; partner: the trainers' acquire.
      passed.store(arrived, std::memory_order_release);
      shm::futex_wake_all(passed);
    }
  }
  if (std::optional<Fault> fault = job.machine.waiting_for_detached()) {
    fail_job(job, std::move(*fault));
  }
  return Status();
}

// The barrier word without its doorbell: shared memory is the truth.
void Daemon::ring_barrier(Session& session) {
  const Status status = look_at_barrier(session);
  if (!status.ok()) end_session(session, status);
}

void Daemon::on_work_done(JobWork* work) {
  Job* job = nullptr;
  for (const auto& [id, other] : jobs_) {
    if (other->work.get() == work) job = other.get();
  }
  ELIXIR_CHECK(job != nullptr, "work done for a job that is gone");
  const uint32_t steps_before = job->machine.finished_step();
  switch (job->machine.activity()) {
    case Activity::kLoad:
      on_load_done(*job, Load(job->machine.load_in_flight()));
      break;
    case Activity::kStep:
      if (job->stage == StepStage::kTaking) {
        commit_step(*job);
      } else {
        on_step_done(*job);
      }
      break;
    default:
      job->machine.finish_activity();
  }
  if (job->machine.finished_step() != steps_before) {
    // Doorbells of a step that was not awaited yet have rung for nothing.
    for (Session* session : job->sessions) {
      const Status status = look_at_all_grads(*session);
      if (!status.ok()) return end_session(*session, status);
    }
  }
  advance(*job);
  end_if_possible(*job);
}

void Daemon::on_load_done(Job& job, const Load& load) {
  const JobPhase before = job.machine.phase();
  job.machine.finish_activity();
  std::atomic<uint32_t>& taken =
      job.sessions[load.rank]->memory->chunk_record(load.slot).loads_taken;
  // Release: the slot has been read; partner: the trainer's acquire before it writes there again.
  taken.store(job.machine.loads_taken(load.rank, load.slot), std::memory_order_release);
  shm::futex_wake_all(taken);
  if (before == JobPhase::kTraining || job.machine.phase() != JobPhase::kTraining) return;
  log_info("loaded", "job='{}' seconds={:.2f}", job.name, seconds_since(job.phase_since_ns));
  for (Session* session : job.sessions) {
    if (!session->await_ready_id) continue;
    reply(*session, shm::Ack{}, *session->await_ready_id);
    session->await_ready_id.reset();
  }
}

void Daemon::on_step_done(Job& job) {
  job.machine.finish_activity();
  JobStatistics& statistics = job.statistics;
  ++statistics.steps;
  statistics.update_ns_last = job.work->update_ns();
  statistics.update_ns_sum += job.work->update_ns();
  statistics.verdict_last = job.verdict;
  statistics.skipped += job.verdict.skipped ? 1 : 0;
  std::swap(statistics.records_last, job.records);
  statistics.metric_mean_last = job.metric_mean;
}

}  // namespace elixir::daemon
