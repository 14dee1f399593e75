#include "daemon/job.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/slices.h"

namespace elixir::daemon {
namespace {

// With the collective exchange trainers sum up the squares.
shm::StepRules tracked_rules(const Job::Options& options) {
  shm::StepRules rules = options.rules;
  if (options.shape.exchange == shm::Exchange::kCollective) rules.norms = 0;
  return rules;
}

}  // namespace

Job::Job(Options options, JobPorts* ports)
    : options_(std::move(options)),
      ports_(*ports),
      numel_(shm::total_numel(options_.places)),
      machine_(options_.shape.type, local_ranks(),
               {options_.shape.n_chunks, options_.shape.n_frozen_chunks},
               options_.shape.exchange == shm::Exchange::kHost ? 1 : local_ranks()),
      tracker_(local_ranks(), options_.shape.n_chunks, tracked_rules(options_),
               options_.shape.first_swing()),
      doorbells_(options_.local_ranks, options_.shape.n_chunks),
      sessions_(local_ranks()),
      phase_since_ns_(monotonic_ns()),
      has_sums_(options_.rules.sums_all()),
      held_tasks_(options_.shape.n_chunks),
      slots_(options_.shape),
      early_(options_.shape.n_chunks, options_.shape.n_spare_slots),
      swings_(options_.shape, local_ranks()) {
  for (auto* records : {&records_, &open_records_, &statistics_.records_last}) {
    records->reserve(local_ranks());
  }
  released_.reserve(options_.shape.n_chunks);
  tasks_.reserve(options_.shape.n_chunks);
  moved_.reserve(options_.shape.n_spare_slots);
  for (auto* chunks : {&opened_swings_, &published_swings_}) {
    chunks->reserve(options_.shape.n_swing_chunks);
  }
  taken_over_.reserve(options_.shape.n_swing_lanes);
}

Result<Session*> Job::claim(Session session) {
  for (const auto& other : sessions_) {
    if (other == nullptr || other->rank != session.rank) continue;
    if (other->local_rank == session.local_rank) continue;  // the machine says it better
    return error(Code::kInvalidArgument,
                 "rank {} of job '{}' is local rank {} and {}: a starter gives each rank one place",
                 session.rank, options_.name, other->local_rank, session.local_rank);
  }
  ELIXIR_RETURN_IF_ERROR(machine_.claim(session.local_rank, session.rank));
  std::unique_ptr<Session>& place = sessions_[session.local_rank];
  session.job = this;
  session.over_early.reserve(shm::kFolderRing);
  place = std::make_unique<Session>(std::move(session));
  return place.get();
}

void Job::reserved(Session& session, Result<SessionMemory> memory) {
  ELIXIR_CHECK(session.reservation.has_value(), "nothing was reserved for rank {}", session.rank);
  const Reservation reservation = *std::exchange(session.reservation, std::nullopt);
  if (given_up_) return give_up();
  if (memory.ok()) {
    session.memory = std::make_unique<SessionMemory>(std::move(*memory));
    session.moved();
    reserved_bytes_ += session.memory->bytes() + (has_sums_ ? session.memory->sums().bytes() : 0);
    log_info("reserved", "job='{}' session={} rank={} bytes={} seconds={:.2f}", options_.name,
             session.id, session.rank, session.memory->bytes(),
             seconds_since(reservation.since_ns));
    if (session.memory->off_node_bytes().value_or(0) > 0) {
      log_warn("off_node", "job='{}' rank={} node={} bytes={} of={}", options_.name, session.rank,
               session.memory_node, *session.memory->off_node_bytes(), session.memory->bytes());
    }
  } else {
    end_session(session, memory.status());
  }
  end_if_possible();
}

void Job::say_what_is_being_reserved(int64_t now_ns) {
  for (const auto& session : sessions_) {
    if (session == nullptr || !session->reservation) continue;
    Reservation& reservation = *session->reservation;
    const double waited_s = static_cast<double>(now_ns - reservation.since_ns) * 1e-9;
    if (!reservation.notes.due(waited_s)) continue;
    log_info("reserving", "job='{}' session={} rank={} bytes={} of={} seconds={:.1f}",
             options_.name, session->id, session->rank,
             reservation.progress->filled_bytes.load(std::memory_order_relaxed), reservation.bytes,
             waited_s);
  }
}

bool Job::attached(const Session& session) { return machine_.attached(session.local_rank); }

void Job::begin_work(std::span<const uint32_t> threads_of_group, uint64_t slice_numel) {
  ELIXIR_CHECK(work_ == nullptr && phase() != JobPhase::kAttaching,
               "job '{}' is cut into slices twice, or before its ranks are here", options_.name);
  JobWork::Options work;
  work.shape = options_.shape;
  const auto n_groups = static_cast<uint32_t>(threads_of_group.size());
  work.thread_limits = group_limits(n_groups, options_.workers);
  std::vector<uint32_t> shards, groups;
  for (const auto& session : sessions_) {
    ELIXIR_CHECK(work.thread_limits[session->worker_group] > 0,
                 "rank {} lies where job '{}' has no threads", session->rank, options_.name);
    groups.push_back(session->worker_group);
    shards.push_back(session->rank);
    work.ranks.push_back({session->memory.get(), session->rank});
    memories_.push_back(session->memory.get());
  }
  updates_ = std::make_unique<ParameterUpdates>(options_.shape, options_.places, shards);
  work.updates = updates_.get();
  work.slots = &slots_;
  work.slices =
      cut_slices(options_.shape, updates_->used_numel(), slice_numel, {shards, groups}, n_groups);
  work_ = std::make_unique<JobWork>(std::move(work));
  phase_since_ns_ = monotonic_ns();
  log_info("all_attached", "job='{}' ranks={} params={} host_bytes={}", options_.name,
           local_ranks(), numel_, reserved_bytes_);
}

void Job::ranks_are_told() {
  for (const auto& session : sessions_) session->memory->close_for_ranks();
}

void Job::said_hello(Session& session, std::string routing_id) {
  session.routing_id = std::move(routing_id);
  const bool all = std::all_of(sessions_.begin(), sessions_.end(), [](const auto& other) {
    return other != nullptr && !other->routing_id.empty();
  });
  if (all && !std::exchange(closed_to_new_writers_, true)) close_to_new_writers();
}

// No descriptor left in a trainer, or passed on by it, gives more than it has. Nothing rests on it:
// what trainers can write is not trusted.
void Job::close_to_new_writers() {
  for (const auto& session : sessions_) {
    const Status closed = session->memory->close_to_new_writers();
    if (closed.ok()) continue;
    return log_warn("not_sealed", "job='{}' text='{}'", options_.name, closed.message());
  }
}

Status Job::load_chunk(const Session& session, const shm::LoadChunk& message) {
  // A frozen chunk's number leaves out those placed on the GPU, which elixird does not keep.
  const shm::Shape& shape = options_.shape;
  if (shape.on_gpu(message.chunk) || message.chunk >= shape.total_chunks()) {
    return error(Code::kProtocol, "LoadChunk of chunk {} of {}{}", message.chunk,
                 shape.total_chunks(), shape.on_gpu(message.chunk) ? ", placed on the GPU" : "");
  }
  const uint32_t chunk =
      shape.frozen(message.chunk) ? message.chunk - shape.n_gpu_chunks : message.chunk;
  if (shape.frozen(message.chunk)) frozen_left_out_.reset();
  const auto part = static_cast<shm::LoadPart>(message.part);
  ELIXIR_RETURN_IF_ERROR(
      machine_.request_load({session.local_rank, chunk, shape.load_slot(message.chunk), part}));
  advance();
  return Status();
}

void Job::await_ready(Session& session, const shm::AwaitReady& request) {
  session.await_ready_id = request.header.request_id;
  session.moved();
  session.awaits_all_ranks = request.all_ranks != 0;
  look_at_posted(session);
  tracker_.note_call(session.local_rank, session.awaits_all_ranks);
  answer_ready();
  advance();
  fail_if_waiting_for_a_call();
  fail_if_waiting_for_detached();
}

void Job::answer_ready() {
  if (phase() != JobPhase::kTraining) return;
  const bool all = std::all_of(sessions_.begin(), sessions_.end(), [](const auto& session) {
    return session->await_ready_id.has_value() && session->awaits_all_ranks;
  });
  for (const auto& session : sessions_) {
    if (!session->await_ready_id || (session->awaits_all_ranks && !all)) continue;
    tracker_.note_call(session->local_rank, false);
    ports_.reply(*session, *std::exchange(session->await_ready_id, std::nullopt));
  }
}

uint64_t Job::need_bytes() const {
  return local_ranks() * options_.rank_bytes(has_sums_ || sums_progress_ != nullptr);
}

uint64_t Job::filling_bytes() const {
  uint64_t bytes =
      sums_progress_ ? sums_progress_->filled_bytes.load(std::memory_order_relaxed) : 0;
  for (const auto& session : sessions_) {
    if (session == nullptr || !session->reservation) continue;
    bytes += session->reservation->progress->filled_bytes.load(std::memory_order_relaxed);
  }
  return bytes;
}

bool Job::reserving() const {
  return sums_progress_ != nullptr ||
         std::any_of(sessions_.begin(), sessions_.end(), [](const auto& session) {
           return session != nullptr && session->reservation.has_value();
         });
}

// A step has a second gradient for the first time: what sums need was not reserved.
void Job::fill_sums() {
  log_info("fill_sums", "job='{}' bytes={}", options_.name,
           local_ranks() * options_.shape.sums_bytes());
  auto progress = std::make_shared<FillProgress>();
  ports_.fill_sums(*this, progress);
  sums_progress_ = std::move(progress);
}

void Job::sums_filled(const Status& status) {
  ELIXIR_CHECK(sums_progress_ != nullptr && !over_, "nobody filled the sums of job '{}'",
               options_.name);
  sums_progress_.reset();
  if (given_up_) return give_up();
  if (status.ok()) {
    has_sums_ = true;
    for (const auto& session : sessions_) session->memory->sums_filled();
    reserved_bytes_ += local_ranks() * options_.shape.sums_bytes();
    tracker_.sums_are_there();
    advance();
  } else if (phase() != JobPhase::kEnding) {
    fail(fault_of_all(status.code(), kNoRank, status.message()));
  }
  end_if_possible();
}

}  // namespace elixir::daemon
