#include "base/log.h"
#include "base/units.h"
#include "daemon/daemon.h"
#include "shm/futex.h"

namespace elixir::daemon {

// A rank broke the rules, or its memory could not be had. It hears why; the others that they lost
// it.
void Daemon::end_session(Session& session, const Status& why) {
  Job& job = *session.job;
  if (job.machine.phase() == JobPhase::kEnding) return;  // one reason is enough
  log_warn("end_session", "job='{}' session={} rank={} pid={} code={} text='{}'", job.name,
           session.id, session.rank, session.pid, code_name(why.code()), why.message());
  Fault fault;
  fault.code = why.code();
  fault.rank = session.local_rank;
  fault.text = why.message();
  fault.others_code = Code::kPeerLost;
  fault.others_text =
      fmt::format("elixird ended rank {} (pid {}): {}", session.rank, session.pid, why.message());
  fail_job(job, std::move(fault));
}

// End-of-file without Detach. A step that every rank had posted before will still happen.
void Daemon::lose_rank(Session& session) {
  Job& job = *session.job;
  log_warn("lost", "job='{}' session={} rank={} pid={}", job.name, session.id, session.rank,
           session.pid);
  close_connection(std::exchange(session.socket, -1));
  for (Session* other : job.sessions) {
    if (other != nullptr) look_at_posted(*other);
  }
  Fault fault;
  fault.code = fault.others_code = Code::kPeerLost;
  fault.rank = session.local_rank;
  fault.text = fault.others_text = fmt::format(
      "rank {} (pid {}) died: see its own output for the cause, then start the job again",
      session.rank, session.pid);
  if (job.tracker.partly_updated()) {
    fault.text += fmt::format(
        " (updates are immediate: some chunks have that of step {} already, so that the weights in "
        "memory are of two steps)",
        job.tracker.step());
    fault.others_text = fault.text;
    log_warn("two_steps", "job='{}' step={}", job.name, job.tracker.step());
  }
  fail_job(job, std::move(fault), true);
}

// A clean goodbye. The memory stays until all ranks have gone: the others map its params.
void Daemon::detach(Session& session) {
  Job& job = *session.job;
  look_at_posted(session);
  ring_barrier(session);           // its last doorbell may come after this, on another socket
  if (session.socket < 0) return;  // what it had posted ended its job
  log_info("detach", "job='{}' session={} rank={} pid={} steps={}", job.name, session.id,
           session.rank, session.pid, job.machine.posted_step(session.local_rank));
  close_connection(std::exchange(session.socket, -1));
  if (std::optional<Fault> fault = job.machine.detach(session.local_rank)) {
    fail_job(job, std::move(*fault));
  } else {
    advance(job);
    end_if_possible(job);
  }
}

void Daemon::fail_job(Job& job, Fault fault, bool finish_posted) {
  job.machine.fail(std::move(fault), finish_posted);
  advance(job);
  end_if_possible(job);
}

// Once nothing uses the job's memory: the step in hand is finished, then the ranks are told.
void Daemon::end_if_possible(Job& job) {
  if (job.machine.phase() == JobPhase::kEnding) stop_reserving(job);
  if (job.machine.phase() != JobPhase::kEnding || job.machine.activity() != Activity::kNone ||
      job.reservations > 0 || !jobs_.contains(job.id)) {
    return;
  }
  announce(job);
  end_job(job);
}

void Daemon::announce(Job& job) {
  if (!job.machine.fault()) return;
  const Fault& fault = *job.machine.fault();
  const Session* const at_fault =
      fault.rank == kNoRank ? nullptr : job.sessions[fault.rank];  // null: never attached
  const uint32_t named = at_fault == nullptr ? fault.rank : at_fault->rank;
  for (Session* session : job.sessions) {
    if (session == nullptr) continue;
    const bool culprit = session == at_fault;
    const Code code = culprit ? fault.code : fault.others_code;
    const std::string& text = culprit ? fault.text : fault.others_text;
    if (session->memory != nullptr) {
      shm::ControlHeader& header = session->memory->header();
      header.fault_rank.store(named, std::memory_order_relaxed);
      // Release: the rank; partner: the trainer's acquire of fault, which it polls.
      header.fault.store(static_cast<uint32_t>(code), std::memory_order_release);
      shm::futex_wake_all(header.committed_step);
      shm::futex_wake_all(header.finished_step);
      shm::futex_wake_all(header.barrier_passed);
    }
    if (session->socket < 0) continue;
    if (session->memory == nullptr) {  // still waits for its AttachReply
      const int socket = std::exchange(session->socket, -1);
      refuse(connections_.at(socket), Status(code, text));
      continue;
    }
    shm::SessionFault message{};
    message.code = static_cast<uint32_t>(code);
    message.rank = named;
    shm::set_text(message.text, text);
    // A peer that does not take it finds the fault in its control header.
    [[maybe_unused]] const Status sent = shm::send_message(session->socket, message, {}, 0);
  }
}

// From here on nobody finds the job; its memory goes once the handlers in progress have returned.
void Daemon::end_job(Job& job) {
  log_info("job_over", "job='{}' steps={} clean={} freed={}", job.name, job.statistics.steps,
           !job.machine.fault().has_value(), job.reserved_bytes);
  for (Session* session : job.sessions) {
    if (session == nullptr) continue;
    if (session->socket >= 0) close_connection(std::exchange(session->socket, -1));
    if (!session->routing_id.empty()) bound_.erase(session->routing_id);
    sessions_.erase(session->id);
  }
  releasing_bytes_ += job.need_bytes;
  const auto found = jobs_.find(job.id);
  ended_.push_back(std::move(found->second));
  jobs_.erase(found);
}

void Daemon::free_ended() {
  for (std::shared_ptr<Job>& job : std::exchange(ended_, {})) {
    const uint64_t bytes = job->need_bytes;
    // Unmapping gigabytes takes long: not here.
    background_->start([last = std::move(job)]() mutable { last.reset(); },
                       [this, bytes] {
                         releasing_bytes_ -= bytes;
                         retry_waiting();
                       });
  }
}

void Daemon::stop_all_jobs() {
  Fault fault;
  fault.code = fault.others_code = Code::kUnavailable;
  fault.text = fault.others_text =
      "elixird was stopped: start it (or the launcher) again, then the job";
  std::vector<Job*> jobs;
  for (const auto& [id, job] : jobs_) jobs.push_back(job.get());
  for (Job* job : jobs) fail_job(*job, fault, true);
}

}  // namespace elixir::daemon
