// Data path, hop 3 of 6.
//
// A step that every rank has posted is checked, committed, and handed to the workers as the
// slices cut at attach.

#include "base/clock.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/step_check.h"
#include "shm/futex.h"

namespace elixir::daemon {
namespace {

// The first rank whose gradients of a chunk are not there, though it has posted the step.
StepViolation check_gradients(const Job& job, uint32_t step) {
  for (const Session* session : job.sessions) {
    for (uint32_t chunk = 0; chunk < job.shape.n_chunks; ++chunk) {
      // Acquire: the gradients written before it; partner: the release in client/session.
      const uint32_t grad_step =
          session->memory->chunk_record(chunk).grad_step.load(std::memory_order_acquire);
      if (grad_step != step) {
        return {session->local_rank,
                fmt::format("step {} posted with the gradients of step {} in chunk {}", step,
                            grad_step, chunk)};
      }
    }
  }
  return {};
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
  advance(job);
  if (std::optional<Fault> fault = job.machine.waiting_for_detached()) {
    fail_job(job, std::move(*fault));
  }
}

// Starts what can be started; at most one activity of a job is in flight.
void Daemon::advance(Job& job) {
  const NextActivity next = job.machine.start_next();
  switch (next.activity) {
    case Activity::kNone:
      return;
    case Activity::kLoad:
      job.work->begin_load(next.load.rank, next.load.chunk, next.load.part);
      return pool_->submit(job.work.get());
    case Activity::kStep:
      if (commit_step(job, next.step)) start_update(job);
      return;
  }
}

// False when a rank broke the rules; its session is then over.
bool Daemon::commit_step(Job& job, uint32_t step) {
  job.records.clear();
  for (const Session* session : job.sessions) {
    job.records.push_back(session->memory->copy_step_record(step));
  }
  StepViolation violation = check_step_records(job.records, step);
  if (violation.text.empty()) violation = check_gradients(job, step);
  if (!violation.text.empty()) {
    job.machine.refuse_step();
    end_session(*job.sessions[violation.rank], Status(Code::kProtocol, violation.text));
    return false;
  }
  job.metric_mean = mean_metric(job.records);
  const shm::StepRecord& record = job.records[0];
  const optim::AdamStep constants =
      optim::make_adam_step(adam_options(record), step, record.grad_scale);
  job.work->begin_step(step, constants, monotonic_ns());
  for (const Session* session : job.sessions) {
    shm::StepResult& result = session->memory->step_result(step);
    result.step = step;
    result.metric_mean = job.metric_mean;
    std::atomic<uint32_t>& committed = session->memory->header().committed_step;
    // Release: the result's mean; partner: the trainer's acquire of committed_step.
    committed.store(step, std::memory_order_release);
    shm::futex_wake_all(committed);
  }
  return true;
}

// Without chunks of home cpu there is nothing to update.
void Daemon::start_update(Job& job) {
  if (job.shape.n_chunks > 0) return pool_->submit(job.work.get());
  job.work->complete_step();
  job.machine.finish_activity();
  on_step_done(job);
  advance(job);
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
  if (job->machine.activity() == Activity::kLoad) {
    on_load_done(*job, Load(job->machine.load_in_flight()));
  } else {
    job->machine.finish_activity();
    on_step_done(*job);
  }
  advance(*job);
  end_if_possible(*job);
}

void Daemon::on_load_done(Job& job, const Load& load) {
  const JobPhase before = job.machine.phase();
  job.machine.finish_activity();
  reply(*job.sessions[load.rank], shm::Ack{}, load.request_id);
  if (before == JobPhase::kTraining || job.machine.phase() != JobPhase::kTraining) return;
  log_info("loaded", "job='{}' seconds={:.2f}", job.name, seconds_since(job.phase_since_ns));
  for (Session* session : job.sessions) {
    if (!session->await_ready_id) continue;
    reply(*session, shm::Ack{}, *session->await_ready_id);
    session->await_ready_id.reset();
  }
}

void Daemon::on_step_done(Job& job) {
  JobStatistics& statistics = job.statistics;
  ++statistics.steps;
  statistics.update_ns_last = job.work->update_ns();
  statistics.update_ns_sum += job.work->update_ns();
  std::swap(statistics.records_last, job.records);
  statistics.metric_mean_last = job.metric_mean;
}

}  // namespace elixir::daemon
