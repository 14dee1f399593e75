#include <bit>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "daemon/job.h"
#include "shm/futex.h"

namespace elixir::daemon {
namespace {

// In the control header, which the trainer polls.
void write_fault(shm::ControlHeader& header, Code code, uint32_t cause) {
  header.fault_rank.store(cause, std::memory_order_relaxed);
  // Release: the rank; partner: the trainer's acquire of fault, which it polls.
  header.fault.store(static_cast<uint32_t>(code), std::memory_order_release);
  shm::futex_wake_all(header.committed_step);
  shm::futex_wake_all(header.finished_step);
}

}  // namespace

void Job::end_session(const Session& session, const Status& why) {
  if (phase() == JobPhase::kEnding) return;  // one reason is enough
  log_warn("end_session", "job='{}' session={} rank={} pid={} code={} text='{}'", options_.name,
           session.id, session.rank, session.pid, code_name(why.code()), why.message());
  Fault fault;
  fault.code = why.code();
  fault.rank = session.local_rank;
  fault.text = why.message();
  fault.others_code = Code::kPeerLost;
  fault.others_text =
      fmt::format("elixird ended rank {} (pid {}): {}", session.rank, session.pid, why.message());
  fail(std::move(fault));
}

void Job::lose_rank(Session& session) {
  const std::string oom = session.oom_watch ? session.oom_watch->verdict() : "";
  log_warn("lost", "job='{}' session={} rank={} pid={}{}", options_.name, session.id, session.rank,
           session.pid, oom.empty() ? "" : fmt::format(" cause=\"{}\"", oom));
  look_at_swings(session);  // what it has updated counts
  close(session);
  for (const auto& other : sessions_) {
    if (other != nullptr) look_at_posted(*other);
  }
  std::string text =
      fmt::format("rank {} (pid {}) died: {}, then start the job again", session.rank, session.pid,
                  oom.empty() ? "see its own output for the cause" : oom);
  if (tracker_.partly_updated()) {
    text += fmt::format(
        " (updates are immediate: some chunks already have the update of step {}, so the weights "
        "in memory belong to two steps)",
        tracker_.step());
    log_warn("two_steps", "job='{}' step={}", options_.name, tracker_.step());
  }
  fail(fault_of_all(Code::kPeerLost, session.local_rank, std::move(text)), /*finish_posted=*/true);
}

void Job::detach(Session& session) {
  look_at_posted(session);
  if (session.socket < 0) return;  // what it had posted ended its job
  const Status published = note_all_grads(session);
  if (!published.ok()) return end_session(session, published);
  const JobPhase before = phase();
  look_at_swings(session);
  if (phase() != before) return;  // so did what it said of swing chunks
  log_info("detach", "job='{}' session={} rank={} pid={} steps={}", options_.name, session.id,
           session.rank, session.pid, machine_.posted_step(session.local_rank));
  close(session);
  tracker_.note_gone(session.local_rank, machine_.posted_step(session.local_rank));
  if (std::optional<Fault> fault = machine_.detach(session.local_rank)) {
    return fail(std::move(*fault));
  }
  fail_if_waiting_for_detached();
  go_on_with_swings();
  advance();
  end_if_possible();
}

void Job::stop() {
  cancel_save();
  if (asked_) drop_asked(error(Code::kUnavailable, "elixird was stopped before the save began"));
  fail(fault_of_all(Code::kUnavailable, kNoRank,
                    "elixird was stopped: start it (or the launcher) again, then the job"),
       /*finish_posted=*/true);
}

void Job::give_up() {
  if (!std::exchange(given_up_, true)) {
    log_warn("no_memory", "job='{}' remedy='ulimit -d, ulimit -v, vm.overcommit_memory'",
             options_.name);
  }
  machine_.fail(fault_of_all(Code::kResourceExhausted, kNoRank, no_memory_left().message()),
                /*finish_posted=*/false);
  asked_.reset();
  tasks_.clear();
  held_tasks_.clear();
  if (saving_ != nullptr) {
    saving_->cancelled.store(true, std::memory_order_relaxed);
    saving_->snapshot->end();
  }
  const bool of_folder = machine_.activity() == Activity::kRestore;
  if (machine_.activity() != Activity::kNone && !of_folder && !submitted_) {
    machine_.finish_activity();  // nobody works at it
  }
  end_if_possible();
}

void Job::check_memory() {
  for (const auto& session : sessions_) {
    if (session == nullptr || session->memory == nullptr || !session->memory->lost_pages())
      continue;
    return end_session(*session,
                       error(Code::kProtocol,
                             "pages of this rank's shared memory are gone, with what they held: a "
                             "process that maps them punched a hole into them, or the machine's "
                             "memory failed (see the kernel's log)"));
  }
}

void Job::look_for_swapped(uint64_t bytes) {
  uint64_t swapped_bytes = 0;
  for (const auto& session : sessions_) {
    if (session == nullptr || session->memory == nullptr) continue;
    session->memory->look_for_swapped(bytes / sessions_.size());
    swapped_bytes += session->memory->swapped_bytes().value_or(0);
  }
  if (swapped_bytes > 0 && swapped_bytes_ == 0) {
    log_warn("swapped",
             "job='{}' bytes={} remedy='raise ulimit -l (LimitMEMLOCK=), or set MemorySwapMax=0'",
             options_.name, swapped_bytes);
  }
  swapped_bytes_ = swapped_bytes;
}

// A rank waits in backward() for gradients of one that has begun the step and does not go on with
// it: it may wait for the first one in turn, where elixird does not see it.
void Job::check_midst_of_step(int64_t now_ns, uint32_t limit_s) {
  const uint64_t late = tracker_.late_ranks();
  uint64_t publications = 0;
  for (const auto& session : sessions_) publications += session->noted_publications;
  const uint64_t before = std::exchange(seen_publications_, publications);
  if (late == 0 || before != seen_publications_ || reserving()) moved_ns_ = now_ns;
  if (now_ns - moved_ns_ <= int64_t{limit_s} * 1'000'000'000) return;
  const Session& session = *sessions_[static_cast<size_t>(std::countr_zero(late))];
  fail(fault_of_all(
      Code::kTimedOut, session.local_rank,
      fmt::format(
          "rank {} has made some gradients of step {}, then none for {} s, and other ranks wait "
          "for them in backward(). If a step has several backward passes, each one waits for "
          "all ranks' gradients of the pass before. Remove waits between the passes (a barrier, "
          "an all-reduce of the program's own), or use the same parameters in each pass "
          "(elixird --attach-timeout-s raises the limit)",
          session.rank, tracker_.step(), limit_s)));
}

void Job::check_timeout(int64_t now_ns, uint32_t limit_s) {
  check_swings(now_ns, limit_s);
  if (phase() == JobPhase::kTraining) return check_midst_of_step(now_ns, limit_s);
  if (reserving()) phase_since_ns_ = now_ns;  // ranks wait for us, not we for them
  if (now_ns - phase_since_ns_ <= int64_t{limit_s} * 1'000'000'000) return;
  if (phase() != JobPhase::kAttaching && phase() != JobPhase::kLoading) return;
  std::vector<uint32_t> late = machine_.missing_ranks();
  for (const auto& session : sessions_) {
    if (!late.empty()) break;
    if (session->routing_id.empty()) late.push_back(session->local_rank);
  }
  if (late.empty()) return;
  // Of one that never came only its place is known.
  const Session* const session = sessions_[late.front()].get();
  const std::string who = session == nullptr ? fmt::format("local rank {}", late.front())
                                             : fmt::format("rank {}", session->rank);
  fail(fault_of_all(Code::kTimedOut, late.front(),
                    fmt::format("{} of job '{}' on this node did not attach and say hello within "
                                "{} s (--attach-timeout-s raises it)",
                                who, options_.name, limit_s)));
}

void Job::fail(Fault fault, bool finish_posted) {
  machine_.fail(std::move(fault), finish_posted);
  go_on_with_swings();  // of a rank that is gone
  advance();
  end_if_possible();
}

// A rank that waits for one that has said goodbye would wait for ever.
void Job::fail_if_waiting_for_detached() {
  if (std::optional<Fault> fault = machine_.waiting_for_detached()) fail(std::move(*fault));
  for (const auto& waiting : sessions_) {
    if (phase() != JobPhase::kTraining) return;
    if (!waiting->await_ready_id) continue;
    for (const auto& gone : sessions_) {
      if (gone->socket >= 0) continue;
      fail(fault_of_all(Code::kPeerLost, gone->local_rank,
                        fmt::format("rank {} detached, and rank {} waits for all ranks: all ranks "
                                    "must make the same calls",
                                    gone->rank, waiting->rank)));
      break;
    }
  }
}

// A rank that waits for a call of all ranks posts nothing before they have come. One that has
// posted more has not come, and takes another way.
void Job::fail_if_waiting_for_a_call() {
  for (const auto& waiting : sessions_) {
    if (phase() != JobPhase::kTraining) return;
    if (!waiting->await_ready_id || !waiting->awaits_all_ranks) continue;
    const uint32_t step = machine_.posted_step(waiting->local_rank);
    for (const auto& other : sessions_) {
      const uint32_t posted = machine_.posted_step(other->local_rank);
      if (posted <= step) continue;
      fail(fault_of_all(
          Code::kProtocol, other->local_rank,
          fmt::format("rank {} posted step {} while rank {}, which has posted step {}, waits for "
                      "all ranks in a call that all must make (set_parameter(), release()): all "
                      "ranks must make the same calls",
                      other->rank, posted, waiting->rank, step)));
      break;
    }
  }
}

// Once nothing uses the job's memory: the step in hand is finished, then the ranks are told.
void Job::end_if_possible() {
  if (phase() != JobPhase::kEnding || over_) return;
  for (const auto& session : sessions_) {
    if (session == nullptr || !session->reservation) continue;
    // Nobody waits for memory that is still on its way: its threads end with the piece in hand.
    session->reservation->progress->cancelled.store(true, std::memory_order_relaxed);
  }
  if (sums_progress_) sums_progress_->cancelled.store(true, std::memory_order_relaxed);
  if (restoring_) restoring_->progress.cancelled.store(true, std::memory_order_relaxed);
  // Nobody brings what it lacks any more. A whole one is finished: that needs no rank.
  if (saving_ && !given_up_ && saving_->snapshot->awaits_staging()) cancel_save();
  const bool fault_untold = machine_.fault() && !announced_;
  if ((saving_ || restoring_) && fault_untold) {
    announce(*machine_.fault());
    announced_ = true;
  }
  if (machine_.activity() != Activity::kNone || reserving() || saving_) return;
  if (asked_) drop_asked(error(Code::kUnavailable, "the job ended before the save began"));
  if (fault_untold) announce(*machine_.fault());
  over_ = true;
  log_info("job_over", "job='{}' steps={} clean={} freed={}", options_.name, statistics_.steps,
           !machine_.fault().has_value(), reserved_bytes_);
  for (const auto& session : sessions_) {
    if (session != nullptr) close(*session);
  }
  ports_.over(*this);
}

bool Job::waits_for_folder_alone() const {
  const bool loads = machine_.activity() == Activity::kRestore;
  const bool works = machine_.activity() != Activity::kNone && !loads;
  return phase() == JobPhase::kEnding && (saving_ || loads) && !works && !submitted_ &&
         !reserving();
}

std::string Job::folder_under_way() const {
  return saving_ ? saving_->name : restoring_ ? restoring_->path : "";
}

void Job::announce(const Fault& fault) {
  ELIXIR_CHECK(fault.rank == kNoRank || fault.rank < sessions_.size(), "a fault of local rank {}",
               fault.rank);
  const Session* const cause =
      fault.rank == kNoRank ? nullptr : sessions_[fault.rank].get();  // null: never attached
  const uint32_t named = cause == nullptr ? fault.rank : cause->rank;
  for (const auto& session : sessions_) {
    if (session == nullptr) continue;
    const bool own = session.get() == cause;
    const Status why(own ? fault.code : fault.others_code, own ? fault.text : fault.others_text);
    if (session->memory != nullptr) write_fault(session->memory->header(), why.code(), named);
    if (session->socket >= 0) ports_.tell(*session, why, named);
  }
}

void Job::close(Session& session) {
  if (session.socket >= 0) ports_.close(std::exchange(session.socket, -1));
}

}  // namespace elixir::daemon
