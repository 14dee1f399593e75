// A job's memory: whether it fits, and its way here. Background threads make a session's memory
// (daemon/fill.h); the event loop owns the Reservation and hears of the end by on_reserved().

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/compute_type_names.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/units.h"
#include "daemon/daemon.h"
#include "daemon/heap_estimate.h"
#include "daemon/placement.h"

namespace elixir::daemon {
namespace {

constexpr int64_t kSwapNs = 1'000'000'000;
constexpr uint64_t kLookedAtBytes = 1ull << 30;  // a tick: half a millisecond

// All limits were looked at before: something else has taken the memory since. What fails but the
// filling has its own remedies: descriptors, address space.
Status why_not_reserved(Status status, uint64_t bytes, const FillProgress& progress,
                        const MemoryRoom& room) {
  const bool lacks_memory =
      status.code() == Code::kResourceExhausted && progress.failed.load(std::memory_order_relaxed);
  if (!lacks_memory) return status;
  return error(status.code(),
               "{}, after {} of the {} that this rank needs and that were available when its job "
               "was admitted: end other programs, raise the limit ({}), or train a smaller model",
               status.message(), format_bytes(progress.filled_bytes.load()), format_bytes(bytes),
               room.limit);
}

// Half of the margin that the job was admitted with: the other half is what others may take
// meanwhile. Where memory_room is set, what MemAvailable says is not believed; control groups are.
Status check_room_left(const Config& config) {
  const MemoryRoom room = memory_room("", config.memory_room_bytes);
  const uint64_t least_bytes = config.memory_margin_bytes / 2;
  if (room.available_bytes >= least_bytes) return Status();
  return error(Code::kResourceExhausted,
               "other processes have taken memory: {} are left ({}), and {} must stay free, half "
               "of memory_margin",
               format_bytes(room.available_bytes), room.limit, format_bytes(least_bytes));
}

}  // namespace

// What jobs may be given still.
MemoryRoom Daemon::room_for_jobs() const {
  uint64_t promised_bytes = releasing_bytes_ + details_bytes_;  // to all jobs
  uint64_t outstanding_bytes = details_bytes_;                  // of that, not reserved yet
  for (const auto& [id, job] : jobs_) {
    promised_bytes += job->need_bytes();
    const uint64_t there_bytes = job->reserved_bytes() + job->filling_bytes();
    outstanding_bytes += job->need_bytes() - std::min(job->need_bytes(), there_bytes);
    const SaveMemory saves = job->save_memory();
    promised_bytes += saves.bytes;
    outstanding_bytes += saves.bytes - saves.there_bytes;
  }
  // MemAvailable falls by what is there already; a setting stays, and that is taken off it here.
  const uint64_t held_bytes = promised_bytes - outstanding_bytes;
  MemoryRoom room =
      memory_room("", config_.memory_room_bytes - std::min(config_.memory_room_bytes, held_bytes));
  const uint64_t taken_bytes = outstanding_bytes + config_.memory_margin_bytes;
  room.available_bytes -= std::min(room.available_bytes, taken_bytes);
  room.limit +=
      fmt::format(" less memory_margin {} and {} promised to other jobs and to saves",
                  format_bytes(config_.memory_margin_bytes), format_bytes(outstanding_bytes));
  const uint64_t limit_bytes = config_.memory_limit_bytes;
  const uint64_t below_limit = limit_bytes - std::min(limit_bytes, promised_bytes);
  if (below_limit >= room.available_bytes) return room;
  return {below_limit, fmt::format("memory_limit {} less {} of other jobs and of saves",
                                   format_bytes(limit_bytes), format_bytes(promised_bytes))};
}

// A job that is ending will make room, or one that begins take it, or a measurement.
bool Daemon::memory_moves() const {
  return releasing_bytes_ > 0 || bandwidth_.measuring() ||
         std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
           return entry.second->reserving() || entry.second->phase() == JobPhase::kEnding;
         });
}

// The whole job's need at its first rank, so that no rank is refused after others were not.
Status Daemon::check_memory(const Job::Options& job, bool* wait_for_memory) const {
  const shm::Shape& shape = job.shape;
  const uint64_t need_bytes = job.local_ranks * job.rank_bytes(job.rules.sums_all());
  const uint64_t own_bytes = heap_bytes(job, config_.slice_numel);
  const MemoryRoom room = room_for_jobs();
  if (need_bytes <= room.available_bytes && own_bytes <= room.available_bytes - need_bytes) {
    return Status();
  }
  uint64_t saves_bytes = 0;  // they are given back
  for (const auto& [id, other] : jobs_) saves_bytes += other->save_memory().bytes;
  *wait_for_memory = memory_moves() || need_bytes + own_bytes <= room.available_bytes + saves_bytes;
  return error(
      Code::kResourceExhausted,
      "job '{}' needs {} of host memory ({} ranks, {} chunks of {} elements, {}) and {} in "
      "elixird itself; {} are available ({}): train a smaller model, use bf16 or fewer ranks, "
      "{}end "
      "other jobs, or raise that limit",
      job.name, format_bytes(need_bytes), job.local_ranks, shape.all_chunks(), shape.chunk_numel,
      compute_type_name(shape.type), format_bytes(own_bytes), format_bytes(room.available_bytes),
      room.limit,
      shape.n_spare_slots > 0 ? "fewer spare slots (--spare-slots) or deferred updates, " : "");
}

FillOptions Daemon::fill_options(const Session& session, FillProgress* progress) const {
  const std::vector<NodeThreads>& groups = pool_->groups();
  ELIXIR_CHECK(session.worker_group < groups.size(), "group {} of {}", session.worker_group,
               groups.size());
  const NodeThreads& group = groups[session.worker_group];
  const uint32_t limit = session.job->options().workers;  // the job's own holds for its start, too
  FillOptions fill;
  fill.threads = std::max(1u, limit == 0 ? group.threads : std::min(limit, group.threads));
  fill.cpus = group.cpus;
  fill.progress = progress;
  fill.check_room = [config = config_] { return check_room_left(config); };
  return fill;
}

void Daemon::reserve(Session& session, int32_t numa_node) {
  const Job::Options& job = session.job->options();
  const std::vector<NodeThreads>& groups = pool_->groups();
  session.worker_group = group_of_rank(
      groups, {.workers = job.workers, .local_rank = session.local_rank, .numa_node = numa_node},
      node_distance);
  session.memory_node =
      groups.size() > 1 || nodes_.size() > 1 ? groups[session.worker_group].node : -1;
  const bool sums = job.rules.sums_all();
  note_work();
  Reservation reservation{.bytes = job.rank_bytes(sums),
                          .since_ns = monotonic_ns(),
                          .progress = std::make_shared<FillProgress>()};
  SessionMemory::Options options{.shape = job.shape,
                                 .session_id = session.id,
                                 .rank = session.rank,
                                 .numa_node = session.memory_node,
                                 .sums = sums,
                                 .fill = fill_options(session, reservation.progress.get())};
  struct Outcome {
    Result<SessionMemory> memory = no_memory_left();  // until it is reserved
    uint64_t page_bytes = 0;
  };
  const auto outcome = std::make_shared<Outcome>();
  background_->start(
      [outcome, options, progress = reservation.progress, bytes = reservation.bytes,
       room_bytes = config_.memory_room_bytes] {
        outcome->memory = SessionMemory::create(options);
        if (outcome->memory.ok()) {
          outcome->page_bytes = outcome->memory->state().page_bytes();
        } else {
          outcome->memory = why_not_reserved(outcome->memory.status(), bytes, *progress,
                                             memory_room("", room_bytes));
        }
      },
      [this, outcome, job_id = job.id, local_rank = session.local_rank] {
        Job& of = *jobs_.at(job_id);  // a job does not end while it is reserving
        contain(of, [&] {
          on_reserved(of, local_rank, std::move(outcome->memory), outcome->page_bytes);
        });
        retry_waiting();
      });
  session.reservation = std::move(reservation);  // somebody is at it
}

// The job does not end while this is on its way.
void Daemon::fill_sums(Job& job, std::shared_ptr<FillProgress> progress) {
  const uint64_t need_bytes = job.local_ranks() * job.options().shape.sums_bytes();
  const MemoryRoom room = room_for_jobs();
  struct Part {
    const shm::Segment* sums;
    FillOptions options;
  };
  std::vector<Part> parts;
  const auto outcome = std::make_shared<Status>();
  const auto over = std::make_shared<bool>(false);
  if (need_bytes <= room.available_bytes) {
    for (const auto& session : job.sessions()) {
      ELIXIR_CHECK(session != nullptr && session->memory != nullptr,
                   "job '{}' sums up and a rank's memory is not there", job.options().name);
      parts.push_back({&session->memory->sums(), fill_options(*session, progress.get())});
    }
  } else {
    *outcome = error(Code::kResourceExhausted,
                     "a step of job '{}' has a second backward pass: the FP32 sums of its "
                     "gradients need {} of host memory, and {} are available ({}): set accumulate "
                     "to their number, so that a job that does not fit gets its error at the "
                     "start; train a smaller model, end other jobs, or raise that limit",
                     job.options().name, format_bytes(need_bytes),
                     format_bytes(room.available_bytes), room.limit);
  }
  background_->start(
      [parts = std::move(parts), outcome, over, progress = std::move(progress)] {
        for (const Part& part : parts) {
          if (outcome->ok()) *outcome = fill_segments({&part.sums, 1}, part.options);
        }
        *over = true;
      },
      [this, outcome, over, job_id = job.options().id] {
        Job& of = *jobs_.at(job_id);
        contain(of, [&] { of.sums_filled(*over ? std::move(*outcome) : no_memory_left()); });
        retry_waiting();
      });
}

// On a machine that swaps nothing there is nothing to be found, but that what was found is back.
void Daemon::look_for_swapped(int64_t now_ns) {
  if (now_ns >= next_swap_ns_) {
    next_swap_ns_ = now_ns + kSwapNs;
    used_swap_bytes_ = used_swap_bytes();
  }
  for_each_job([this](Job& job) {
    if (used_swap_bytes_ == 0 && job.swapped_bytes() == 0) return;
    contain([&] { job.look_for_swapped(kLookedAtBytes / jobs_.size()); });
  });
}

// Nothing is allocated before the job has taken the outcome: it would wait for it for ever.
void Daemon::on_reserved(Job& job, uint32_t local_rank, Result<SessionMemory> memory,
                         uint64_t page_bytes) {
  ELIXIR_CHECK(job.sessions().at(local_rank) != nullptr &&
                   job.sessions()[local_rank]->reservation.has_value(),
               "memory comes for local rank {} of job '{}', which awaits none", local_rank,
               job.options().name);
  Session& session = *job.sessions()[local_rank];
  if (memory.ok()) page_bytes_ = page_bytes;
  job.reserved(session, std::move(memory));
  if (job.phase() == JobPhase::kEnding) return;
  session.owed = Owed::kAttachReply;
  send_owed(job);
}

}  // namespace elixir::daemon
