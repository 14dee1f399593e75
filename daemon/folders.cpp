// What ranks hear of their requests for folders, and states that come from one (saves.cpp: that go
// to one). Background threads read (daemon/saving.h).

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "checkpoint/file_plan.h"
#include "daemon/folder_results.h"
#include "daemon/job.h"

namespace elixir::daemon {
namespace {

// `another`: one is under way.
Status check_load(const Session& session, const checkpoints::Details& details,
                  std::span<const shm::ParameterPlace> places, bool another) {
  if (session.local_rank != 0) {
    return error(Code::kProtocol, "LoadFolder from rank {}: the first of a node sends it",
                 session.rank);
  }
  if (details.shapes.size() != places.size() || another) {
    return error(Code::kProtocol, "LoadFolder with {} shapes of {} parameters",
                 details.shapes.size(), places.size());
  }
  // What is read has the shape's elements, and goes where the table has the parameter's.
  for (size_t i = 0; i < places.size(); ++i) {
    const shm::ParameterPlace& place = places[i];
    if (checkpoints::has_numel(details.shapes[i], place.numel)) continue;
    return error(Code::kProtocol,
                 "LoadFolder with a shape of [{}] of '{:.200}', which has {} elements",
                 fmt::join(details.shapes[i], ", "), place.name, place.numel);
  }
  return Status();
}

}  // namespace

// ---- what a rank hears ----

void Job::tell_folder_progress() {
  const auto tell = [](const Session& session, uint32_t number, uint64_t done, uint64_t all) {
    shm::FolderResult& result = session.memory->folder_result(number);
    result.bytes.store(all, std::memory_order_relaxed);
    result.done_bytes.store(done, std::memory_order_relaxed);
  };
  for (const auto& session : sessions_) {
    if (saving_ == nullptr) break;
    tell(*session, saving_->parts[session->local_rank].number,
         saving_->done_bytes.load(std::memory_order_relaxed),
         saving_->bytes.load(std::memory_order_relaxed));
  }
  if (restoring_ == nullptr) return;
  tell(*sessions_[0], restoring_->number,
       restoring_->progress.bytes.load(std::memory_order_relaxed),
       restoring_->bytes.load(std::memory_order_relaxed));
}

// Nobody ends it: a disk may answer after minutes, and a rank that is stopped may go on.
void Job::say_what_stands_still(int64_t now_ns) {
  if (saving_ != nullptr &&
      saving_->watch.due(saving_->done_bytes.load(std::memory_order_relaxed), now_ns)) {
    log_warn("save_stands_still", "job='{}' folder={} bytes={} of={} seconds={:.0f} text='{}'",
             options_.name, saving_->name, saving_->watch.bytes,
             saving_->bytes.load(std::memory_order_relaxed), saving_->watch.still_s(now_ns),
             saving_->snapshot->awaits_staging()
                 ? "ranks have chunks on their GPUs to bring: is one stopped, or its disk busy?"
                 : "its disk or file server takes its time, or does not answer");
  }
  const bool loads = machine_.activity() == Activity::kRestore;
  if (loads &&
      restoring_->watch.due(restoring_->progress.bytes.load(std::memory_order_relaxed), now_ns)) {
    log_warn("load_stands_still", "job='{}' folder='{}' bytes={} of={} seconds={:.0f} text='{}'",
             options_.name, restoring_->path, restoring_->watch.bytes,
             restoring_->bytes.load(std::memory_order_relaxed), restoring_->watch.still_s(now_ns),
             "its disk or file server takes its time, or does not answer");
  }
}

// ---- from a folder ----

void Job::heard_load(Session& session, const shm::LoadFolder& message,
                     Result<checkpoints::Details> details, UniqueFd folder) {
  if (phase() == JobPhase::kEnding) return;
  look_at_posted(session);
  if (phase() == JobPhase::kEnding) return;
  // What no correct trainer sends.
  if (details.status().code() == Code::kProtocol) return end_session(session, details.status());
  Status status = details.ok()
                      ? check_load(session, *details, options_.places, restoring_ != nullptr)
                      : details.status();
  if (status.ok()) status = machine_.request_restore();
  if (!status.ok()) {
    log_warn("load_refused", "job='{}' rank={} text='{}'", options_.name, session.rank,
             status.message());
    return tell_heard(session, message.number, status);
  }
  restoring_ = std::make_shared<Restoring>();
  restoring_->number = message.number;
  restoring_->folder = std::move(folder);
  restoring_->path = std::string(shm::get_text(message.path));
  restoring_->states = message.states != 0;
  restoring_->shape = options_.shape;
  restoring_->places = options_.places;
  for (size_t i = 0; i < options_.places.size(); ++i) {
    restoring_->wanted.push_back(
        {options_.places[i].name, details->shapes[i], i < options_.shape.n_parameters});
  }
  restoring_->ignored = details->ignored;
  restoring_->device_hash = details->device_hash;
  for (const auto& other : sessions_) {
    restoring_->ranks.push_back({other->memory.get(), other->rank});
  }
  tell_heard(session, message.number, Status());
  advance();
}

void Job::begin_restore() {
  drop_early(/*all=*/true);
  frozen_left_out_.reset();
  restoring_->slots = slots_;
  log_info("load_begun", "job='{}' folder='{}'", options_.name, restoring_->path);
  try {
    ports_.start_restore(*this, restoring_);
  } catch (const std::bad_alloc&) {
    machine_.finish_restore(/*restored=*/false);  // give_up() waits for none that was not started
    throw;
  }
}

void Job::restore_over() {
  const std::shared_ptr<Restoring> restoring = std::move(restoring_);
  restoring_.reset();
  const JobPhase before = phase();
  const Status& status = restoring->status;
  machine_.finish_restore(status.ok());
  if (given_up_) return give_up();
  FolderOutcome outcome;
  outcome.step = restoring->step;
  outcome.bytes = restoring->progress.bytes.load(std::memory_order_relaxed);
  if (status.ok()) {
    // Parameters alone: moments and counts go on.
    if (restoring->states) applied_ = restoring->applied;
    for (uint32_t i = 0; restoring->states && i < options_.shape.n_parameters; ++i) {
      updates_->set_updates(i, restoring->updates[i]);
    }
    work_->tell_updates();
    log_info("loaded", "job='{}' seconds={:.2f} folder='{}' step={} bytes={}", options_.name,
             seconds_since(phase_since_ns_), restoring->path, outcome.step, outcome.bytes);
  } else {
    log_warn("load_failed", "job='{}' folder='{}' text='{}'", options_.name, restoring->path,
             status.message());
  }
  Session& session = *sessions_[0];
  tell_ended(session, restoring->number, status, outcome);
  if (!status.ok() && before == JobPhase::kTraining && restoring->touched) {
    fail(
        fault_of_all(status.code(), session.local_rank,
                     status.message() + " (the states of this run are part of that folder's now)"));
  }
  if (status.ok()) answer_ready();
  advance();
  end_if_possible();
}

}  // namespace elixir::daemon
