// A job's memory: whether it fits, and its way here. Background threads make a session's memory
// (daemon/fill.h); the event loop owns the Reservation and hears of the end by on_reserved().

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/compute_type_names.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/units.h"
#include "daemon/daemon.h"

namespace elixir::daemon {
namespace {

// All limits were looked at before: something else has taken the memory since.
Status why_not_reserved(const Status& status, const Reservation& reservation,
                        const MemoryRoom& room) {
  if (status.code() != Code::kResourceExhausted) return status;
  return error(status.code(),
               "{}, after {} of the {} that this rank needs and that were available when its job "
               "was admitted: end other programs, raise the limit ({}), or train a smaller model",
               status.message(), format_bytes(reservation.progress->filled_bytes.load()),
               format_bytes(reservation.bytes), room.limit);
}

}  // namespace

// The whole job's need at its first rank, so that no rank is refused after others were not.
Status Daemon::check_memory(const std::string& name, const shm::Shape& shape, uint32_t local_ranks,
                            bool* wait_for_memory) {
  const uint64_t need_bytes = local_ranks * shape.session_bytes();
  uint64_t promised_bytes = 0;     // to all jobs
  uint64_t outstanding_bytes = 0;  // of that, not reserved yet
  bool moving = releasing_bytes_ > 0;
  for (const auto& [id, job] : jobs_) {
    promised_bytes += job->need_bytes();
    const uint64_t there_bytes = job->reserved_bytes() + job->filling_bytes();
    outstanding_bytes += job->need_bytes() - std::min(job->need_bytes(), there_bytes);
    moving = moving || job->reserving() || job->phase() == JobPhase::kEnding;
  }
  promised_bytes += releasing_bytes_;
  // MemAvailable falls by what is there already; a setting stays, and that is taken off it here.
  const uint64_t held_bytes = promised_bytes - outstanding_bytes;
  MemoryRoom room =
      memory_room("", config_.memory_room_bytes - std::min(config_.memory_room_bytes, held_bytes));
  const uint64_t taken_bytes = outstanding_bytes + config_.memory_margin_bytes;
  room.available_bytes -= std::min(room.available_bytes, taken_bytes);
  room.limit +=
      fmt::format(" less memory_margin {} and {} promised to other jobs",
                  format_bytes(config_.memory_margin_bytes), format_bytes(outstanding_bytes));
  const uint64_t limit_bytes = config_.memory_limit_bytes;
  const uint64_t below_limit = limit_bytes - std::min(limit_bytes, promised_bytes);
  if (below_limit < room.available_bytes) {
    room = {below_limit, fmt::format("memory_limit {} less {} of other jobs",
                                     format_bytes(limit_bytes), format_bytes(promised_bytes))};
  }
  if (need_bytes <= room.available_bytes) return Status();
  *wait_for_memory = moving;  // a job that is ending will make room, or one that begins take it
  return error(Code::kResourceExhausted,
               "job '{}' needs {} of host memory ({} ranks, {} chunks of {} elements, {}); {} are "
               "available ({}): train a smaller model, use bf16 or fewer ranks, end other jobs, or "
               "raise that limit",
               name, format_bytes(need_bytes), local_ranks, shape.all_chunks(), shape.chunk_numel,
               compute_type_name(shape.type), format_bytes(room.available_bytes), room.limit);
}

void Daemon::reserve(Session& session, int32_t numa_node) {
  const Job::Options& job = session.job->options();
  const std::vector<NodeThreads>& groups = pool_->groups();
  uint32_t group = session.local_rank % static_cast<uint32_t>(groups.size());
  for (uint32_t i = 0; i < groups.size(); ++i) {
    if (groups[i].node == numa_node) group = i;
  }
  session.worker_group = group;
  const int node = groups.size() > 1 || nodes_.size() > 1 ? groups[group].node : -1;
  const int64_t now_ns = monotonic_ns();
  session.reservation =
      Reservation{job.shape.session_bytes(), now_ns, now_ns, std::make_shared<FillProgress>()};
  SessionMemory::Options options{job.shape, session.id, session.rank, node};
  // The job's own limit of threads holds for its start, too.
  options.fill.threads = std::max(
      1u, job.workers == 0 ? groups[group].threads : std::min(job.workers, groups[group].threads));
  options.fill.cpus = groups[group].cpus;
  options.fill.progress = session.reservation->progress.get();
  struct Outcome {
    Result<SessionMemory> memory = error(Code::kInternal, "not reserved yet");
    uint64_t page_bytes = 0;
  };
  const auto outcome = std::make_shared<Outcome>();
  background_->start(
      [outcome, options, progress = session.reservation->progress] {
        outcome->memory = SessionMemory::create(options);
        if (outcome->memory.ok()) outcome->page_bytes = outcome->memory->state().page_bytes();
      },
      [this, outcome, job_id = job.id, local_rank = session.local_rank] {
        on_reserved(job_id, local_rank, std::move(outcome->memory), outcome->page_bytes);
      });
}

void Daemon::on_reserved(uint64_t job_id, uint32_t local_rank, Result<SessionMemory> memory,
                         uint64_t page_bytes) {
  Job& job = *jobs_.at(job_id);  // a job does not end while it is reserving
  Session& session = *job.sessions()[local_rank];
  if (memory.ok()) {
    page_bytes_ = page_bytes;
  } else {
    memory = why_not_reserved(memory.status(), *session.reservation,
                              memory_room("", config_.memory_room_bytes));
  }
  job.reserved(session, std::move(memory));
  retry_waiting();
  if (job.phase() == JobPhase::kEnding) return;
  send_attach_reply(session, page_bytes);
}

void Daemon::send_attach_reply(Session& session, uint64_t page_bytes) {
  Job& job = *session.job;
  shm::AttachReply reply{};
  reply.session_id = session.id;
  reply.token = session.token;
  reply.page_bytes = page_bytes;
  shm::set_text(reply.control_endpoint, folder_.control_endpoint());
  std::vector<int> fds = {session.memory->control().fd(), session.memory->grads().fd()};
  if (session.memory->peer() != nullptr) fds.push_back(session.memory->peer()->fd());
  const Status sent = shm::send_message(session.socket, reply, fds, 0);
  if (!sent.ok()) return job.lose_rank(session);
  if (job.attached(session)) on_all_attached(job);
}

}  // namespace elixir::daemon
