// Whether there is room for a job more: its numbers, descriptors, memory.

#include <algorithm>
#include <climits>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "daemon/daemon.h"
#include "daemon/zmq_gate.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kMostKeptTableBytes = 256ull << 20;  // of jobs that wait for memory
constexpr int64_t kRefusedNoteNs = 1'000'000'000;

}  // namespace

uint64_t Daemon::ranks_without_memory() const {
  uint64_t counted = 0;
  for (const auto& [id, job] : jobs_) {
    uint64_t ranks = 0;
    for (const auto& session : job->sessions()) {
      ranks += session == nullptr || session->memory == nullptr;
    }
    counted += counted_ranks(ranks, job->options().shape.n_swing_chunks > 0);
  }
  return counted;
}

void Daemon::keep_descriptors_for_jobs() const {
  refuse_descriptors_from(static_cast<int>(
      std::min<uint64_t>(INT_MAX, descriptors_.first_refused(ranks_without_memory()))));
}

// What the gate has closed, and who was refused, since the last tick.
void Daemon::look_at_descriptors() {
  keep_descriptors_for_jobs();
  refusal_lines_ = 0;
  if (refusals_untold_ > 0) log_warn("refuse", "more={}", std::exchange(refusals_untold_, 0));
  gate_rang_ = false;
  gate_watches_ = end_silent_connections(monotonic_ns());
  const GateCounts counts = take_gate_counts();
  refused_.beyond_connections += counts.beyond_connections;
  refused_.beyond_descriptors += counts.beyond_descriptors;
  refused_.broken_rules += counts.broken_rules;
  refused_.silent += counts.silent;
  const int64_t now_ns = monotonic_ns();
  if (refused_.all() == 0 || now_ns < next_refused_note_ns_) return;
  next_refused_note_ns_ = now_ns + kRefusedNoteNs;
  log_warn("connections_closed",
           "too_many={} no_descriptors={} limit={} bad_messages={} silent={} "
           "remedy='ulimit -n, LimitNOFILE='",
           refused_.beyond_connections, refused_.beyond_descriptors, descriptors_.limit(),
           refused_.broken_rules, refused_.silent);
  refused_ = {};
}

Job* Daemon::job_named(std::string_view name) const {
  for (const auto& [id, job] : jobs_) {
    if (job->options().name == name && job->phase() != JobPhase::kEnding) return job.get();
  }
  return nullptr;
}

// A job more, by numbers alone.
Status Daemon::check_limits(const shm::AttachRequest& request) const {
  if (!has_heap_reserve()) return no_memory_left();
  if (jobs_.size() >= config_.max_jobs) {
    return error(Code::kResourceExhausted, "{} jobs are running; raise max_jobs", jobs_.size());
  }
  uint64_t ranks = request.position.local_ranks;
  for (const auto& [id, job] : jobs_) ranks += job->local_ranks();
  if (ranks > config_.max_sessions) {
    return error(Code::kResourceExhausted, "{} sessions are needed; raise max_sessions ({})", ranks,
                 config_.max_sessions);
  }
  ranks = counted_ranks(request.position.local_ranks, request.shape.n_swing_chunks > 0);
  for (const auto& [id, job] : jobs_) {
    ranks += counted_ranks(job->local_ranks(), job->options().shape.n_swing_chunks > 0);
  }
  if (!descriptors_.enough_for(ranks)) {
    return error(Code::kResourceExhausted,
                 "{} ranks need {} descriptors in elixird, whose limit is {}, enough for {}; raise "
                 "the limit ({}) and restart it, or end other jobs",
                 ranks, kIdleDescriptors + kDescriptorsPerRank * ranks + descriptors_.spare(),
                 descriptors_.limit(), descriptors_.most_ranks(), kDescriptorRemedy);
  }
  return Status();
}

// The attempt keeps its places, and may wait, where memory lacks.
Result<Job*> Daemon::create_job(AttachAttempt* attempt) {
  const shm::AttachRequest& request = attempt->request;
  ELIXIR_RETURN_IF_ERROR(check_limits(request));
  Job::Options options;
  options.name = std::string(shm::get_text(request.job));
  options.shape = request.shape;
  options.rules = request.rules;
  options.local_ranks = request.position.local_ranks;
  options.table = request.table;
  options.workers = request.wishes.workers;
  options.places = std::move(attempt->places);
  if (Status room = check_memory(options, &attempt->waits_for_memory); !room.ok()) {
    attempt->places = std::move(options.places);
    return room;
  }
  ended_.reserve(ended_.size() + jobs_.size() + 1);  // no end of a job lacks memory
  options.id = next_id_++;
  const uint64_t id = options.id;
  Job* const job = (jobs_[id] = std::make_shared<Job>(std::move(options), this)).get();
  keep_descriptors_for_jobs();
  return job;
}

// Jobs that wait keep their tables here, in no job's budget.
Status Daemon::check_kept_tables() const {
  uint64_t bytes = 0;
  for (const auto& [socket, connection] : connections_) {
    if (connection.attempt && connection.attempt->waits_for_memory) {
      bytes += connection.attempt->request.table.bytes;
    }
  }
  if (bytes <= kMostKeptTableBytes) return Status();
  return error(Code::kResourceExhausted,
               "jobs that wait for memory have parameter tables of {} already: start again later",
               format_bytes(bytes));
}

}  // namespace elixir::daemon
