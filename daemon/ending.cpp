#include "base/log.h"
#include "base/units.h"
#include "daemon/daemon.h"
#include "shm/futex.h"

namespace elixir::daemon {

// A rank broke the rules, or its memory could not be had. It hears why; the others that they lost
// it.
void Daemon::end_session(Session& session, const Status& why) {
  Job& job = *session.job;
  log_warn("end_session", "job='{}' session={} rank={} pid={} code={} text='{}'", job.name,
           session.id, session.rank, session.pid, code_name(why.code()), why.message());
  Fault fault;
  fault.code = why.code();
  fault.rank = session.rank;
  fault.text = why.message();
  fault.others_code = Code::kPeerLost;
  fault.others_text =
      fmt::format("elixird ended rank {} (pid {}): {}", session.rank, session.pid, why.message());
  fail_job(job, std::move(fault));
}

// End-of-file without Detach. A step that every rank had posted before will still happen.
void Daemon::lose_rank(Session& session) {
  Job& job = *session.job;
  const uint64_t session_id = session.id;
  log_warn("lost", "job='{}' session={} rank={} pid={}", job.name, session.id, session.rank,
           session.pid);
  const int socket = std::exchange(session.socket, -1);
  close_connection(socket);
  for (Session* other : std::vector<Session*>(job.sessions)) {
    if (other != nullptr) look_at_posted(*other);
    if (!sessions_.contains(session_id)) return;  // a violation has ended the job meanwhile
  }
  Fault fault;
  fault.code = fault.others_code = Code::kPeerLost;
  fault.rank = session.rank;
  fault.text = fault.others_text = fmt::format(
      "rank {} (pid {}) died: see its own output for the cause, then start the job again",
      session.rank, session.pid);
  fail_job(job, std::move(fault));
}

// A clean goodbye. The memory stays until all ranks have gone: the others map its params.
void Daemon::detach(Session& session) {
  const std::shared_ptr<Job> job = jobs_.at(session.job->id);
  const uint64_t session_id = session.id;
  look_at_posted(session);
  if (!sessions_.contains(session_id)) return;
  log_info("detach", "job='{}' session={} rank={} pid={} steps={}", job->name, session.id,
           session.rank, session.pid, job->machine.posted_step(session.rank));
  const int socket = std::exchange(session.socket, -1);
  close_connection(socket);
  if (std::optional<Fault> fault = job->machine.detach(session.rank)) {
    fail_job(*job, std::move(*fault));
  } else {
    advance(*job);  // a step that the last rank posted just before it left
    end_if_possible(*job);
  }
}

void Daemon::fail_job(Job& job, Fault fault) {
  job.machine.fail(std::move(fault));
  end_if_possible(job);
}

// Once nothing uses the job's memory: the step in hand is finished, then the ranks are told.
void Daemon::end_if_possible(Job& job) {
  if (job.machine.phase() != JobPhase::kEnding || job.machine.activity() != Activity::kNone ||
      job.reservations > 0 || !jobs_.contains(job.id)) {
    return;
  }
  announce(job);
  free_job(job);
}

void Daemon::announce(Job& job) {
  if (!job.machine.fault()) return;
  const Fault& fault = *job.machine.fault();
  for (const Session* session : job.sessions) {
    if (session == nullptr) continue;
    const bool culprit = session->rank == fault.rank;
    const Code code = culprit ? fault.code : fault.others_code;
    const std::string& text = culprit ? fault.text : fault.others_text;
    if (session->memory != nullptr) {
      shm::ControlHeader& header = session->memory->header();
      header.fault_rank.store(fault.rank, std::memory_order_relaxed);
      // Release: the rank; partner: the trainer's acquire of fault, which it polls.
      header.fault.store(static_cast<uint32_t>(code), std::memory_order_release);
      shm::futex_wake_all(header.committed_step);
      shm::futex_wake_all(header.finished_step);
    }
    if (session->socket < 0) continue;
    if (session->memory == nullptr) {  // still waits for its AttachReply
      refuse(connections_.at(session->socket), Status(code, text));
      continue;
    }
    shm::SessionFault message{};
    message.code = static_cast<uint32_t>(code);
    message.rank = fault.rank;
    shm::set_text(message.text, text);
    // A peer that does not take it finds the fault in its control header.
    [[maybe_unused]] const Status sent = shm::send_message(session->socket, message, {}, 0);
  }
}

void Daemon::free_job(Job& job) {
  log_info("job_over", "job='{}' steps={} clean={} freed={}", job.name, job.statistics.steps,
           !job.machine.fault().has_value(), job.reserved_bytes);
  for (Session* session : job.sessions) {
    if (session == nullptr) continue;
    if (session->socket >= 0) close_connection(session->socket);
    if (!session->routing_id.empty()) bound_.erase(session->routing_id);
    sessions_.erase(session->id);
  }
  const auto found = jobs_.find(job.id);
  std::shared_ptr<Job> last = std::move(found->second);
  jobs_.erase(found);
  const uint64_t bytes = last->need_bytes;
  releasing_bytes_ += bytes;
  // Unmapping gigabytes takes long: not here.
  background_->start([last = std::move(last)]() mutable { last.reset(); },
                     [this, bytes] {
                       releasing_bytes_ -= bytes;
                       retry_waiting();
                     });
}

void Daemon::stop_all_jobs() {
  Fault fault;
  fault.code = fault.others_code = Code::kUnavailable;
  fault.text = fault.others_text =
      "elixird was stopped: start it (or the launcher) again, then the job";
  std::vector<std::shared_ptr<Job>> jobs;
  for (const auto& [id, job] : jobs_) jobs.push_back(job);
  for (const std::shared_ptr<Job>& job : jobs) fail_job(*job, fault);
}

}  // namespace elixir::daemon
