// A job's states go to a folder: what ranks ask for is collected, begins when the step it is of is
// finished, and is written by background threads (daemon/saving.h).

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/folder_results.h"
#include "daemon/heap_reserve.h"
#include "daemon/job.h"
#include "shm/futex.h"

namespace elixir::daemon {
namespace {

FolderOutcome outcome_of(const Saving& saving) {
  FolderOutcome outcome;
  outcome.bytes = saving.bytes.load(std::memory_order_relaxed);
  outcome.step = saving.manifest.step;
  outcome.shadow_bytes = saving.snapshot->shadow_bytes();
  outcome.shadow_peak_bytes = saving.snapshot->shadow_peak_bytes();
  outcome.stall_ns = static_cast<uint64_t>(saving.stall_ns);
  outcome.write_ns = static_cast<uint64_t>(saving.end_ns - saving.begin_ns);
  outcome.not_finite = saving.bad_values.load(std::memory_order_relaxed);
  return outcome;
}

std::vector<checkpoints::SavedParameter> saved_parameters(const Job::Options& job,
                                                          const checkpoints::Details& details) {
  std::vector<checkpoints::SavedParameter> parameters;
  for (size_t i = 0; i < job.places.size(); ++i) {
    const shm::ParameterPlace& place = job.places[i];
    // One that lacks its shape is found by plan_files().
    parameters.push_back({place.name,
                          i < details.shapes.size() ? details.shapes[i] : std::vector<int64_t>{0},
                          place.chunk, place.offset, place.numel, i < job.shape.n_parameters});
  }
  return parameters;
}

// But for its files. `applied`: steps of the job.
checkpoints::Manifest manifest_of(const Saving& saving, const Job::Options& job, uint64_t applied,
                                  checkpoints::Manifest manifest) {
  manifest.files.clear();
  manifest.updates_of.clear();
  manifest.updates = applied;
  manifest.type = job.shape.type;
  manifest.ranks = job.shape.ranks;
  for (uint32_t i = 0; i < saving.updates.size(); ++i) {
    if (saving.updates[i] == applied) continue;
    manifest.updates_of[job.places[i].name] = saving.updates[i];
  }
  return manifest;
}

}  // namespace

bool SaveAsked::complete() const {
  return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.has_value(); });
}

// ---- a save is asked for ----

void Job::heard_save(Session& session, const shm::SaveFolder& message, Result<SavePart> part) {
  if (phase() == JobPhase::kEnding) return;
  look_at_posted(session);
  if (phase() == JobPhase::kEnding) return;
  // What no correct trainer sends.
  if (part.status().code() == Code::kProtocol) return end_session(session, part.status());
  Status status = refused_before(session, message.after_step);
  if (status.ok()) status = part.ok() ? check_save(session, message) : part.status();
  if (status.ok()) status = join_save(session, message, std::move(*part));
  if (!status.ok()) {
    refuse_all(session, message.after_step, status);
    ++(status.code() == Code::kUnavailable ? saves_.dropped : saves_.failed);
    saves_.error_last = status.message();
    log_warn("save_refused", "job='{}' rank={} text='{}'", options_.name, session.rank,
             status.message());
  }
  tell_heard(session, message.number, status);
  advance();
  end_if_possible();
}

// What one rank is refused, all are: else some would wait in a save for others that go on.
void Job::refuse_all(const Session& session, uint32_t after_step, const Status& status) {
  const uint64_t bit = uint64_t{1} << session.local_rank;
  if (refused_ && refused_->after_step == after_step && (refused_->heard & bit) == 0) {
    refused_->heard |= bit;
    return;
  }
  refused_ = SaveRefused{after_step, status, bit};
  if (!asked_ || asked_->after_step != after_step) return;
  for (uint32_t rank = 0; rank < local_ranks(); ++rank) {
    if (asked_->parts[rank]) refused_->heard |= uint64_t{1} << rank;
  }
  drop_asked(status);
}

// Another request of a rank that has heard it is a new one.
Status Job::refused_before(const Session& session, uint32_t after_step) {
  if (!refused_ || refused_->after_step != after_step) return Status();
  const bool heard = (refused_->heard >> session.local_rank & 1) != 0;
  if (heard) refused_.reset();
  return heard ? Status() : refused_->status;
}

Status Job::check_save(const Session& session, const shm::SaveFolder& message) {
  const uint32_t posted = machine_.posted_step(session.local_rank);
  if (phase() != JobPhase::kTraining || message.after_step != posted) {
    return error(Code::kProtocol,
                 "a save after step {} while the job is {} and rank {} has posted {}",
                 message.after_step, job_phase_name(phase()), session.rank, posted);
  }
  if (options_.shape.ranks != local_ranks()) {
    return error(
        Code::kInvalidArgument,
        "{} of the {} ranks are on this node, and a folder is written by one elixird alone: "
        "saving over several nodes is not possible yet",
        local_ranks(), options_.shape.ranks);
  }
  if (session.rank != session.local_rank) {
    return error(Code::kInvalidArgument,
                 "rank {} is number {} of this node: to write a folder, ranks must have the same "
                 "numbers as on their node (RANK equal to LOCAL_RANK)",
                 session.rank, session.local_rank);
  }
  if (message.drop_if_busy != 0 && saving_ != nullptr) {
    return error(Code::kUnavailable, "dropped: '{}' is still being written", saving_->name);
  }
  return Status();
}

Status Job::join_save(const Session& session, const shm::SaveFolder& message, SavePart part) {
  const std::string name(shm::get_text(message.name));
  if (!checkpoints::is_file_name(name) || name.find('/') != std::string::npos) {
    return error(Code::kInvalidArgument,
                 "'{:.200}' cannot be the name of a folder: use letters, digits, '.', '_' and '-'",
                 name);
  }
  if (options_.shape.n_gpu_chunks > 0 && !part.staging.valid()) {
    return error(Code::kProtocol, "chunks placed on the GPU, and no memory to bring them in");
  }
  if (asked_ && asked_->after_step != message.after_step) {
    drop_asked(error(Code::kInvalidArgument,
                     "rank {} saves after step {}, others after step {}: let every rank save after "
                     "the same step",
                     session.rank, message.after_step, asked_->after_step));
  }
  if (!asked_) {
    asked_.emplace();
    asked_->after_step = message.after_step;
    asked_->name = name;
    asked_->parts.resize(local_ranks());
  }
  std::optional<SavePart>& place = asked_->parts[session.local_rank];
  if (place || asked_->name != name) {
    return error(
        Code::kInvalidArgument,
        "a save into '{}' after step {}, and one into '{}' is asked for: let every rank save "
        "into one folder, once a step",
        name, message.after_step, asked_->name);
  }
  place = std::move(part);
  return Status();
}

void Job::drop_asked(const Status& why) {
  const SaveAsked asked = std::move(*asked_);
  asked_.reset();
  ++saves_.failed;
  saves_.error_last = why.message();
  log_warn("save_failed", "job='{}' folder={} text='{}'", options_.name, asked.name, why.message());
  for (const auto& session : sessions_) {
    const auto& part = asked.parts[session->local_rank];
    if (part) tell_ended(*session, part->number, why, {});
  }
}

// Before anything is started: a save that is due begins; one that not every rank wants is dropped.
Holds Job::look_at_saves() {
  const bool idle = machine_.activity() == Activity::kNone;
  if (asked_ && idle && !asked_->complete()) {
    for (const auto& session : sessions_) {
      const uint32_t local = session->local_rank;
      if (asked_->parts[local] || machine_.posted_step(local) <= asked_->after_step) continue;
      drop_asked(
          error(Code::kInvalidArgument,
                "rank {} called step() and not save(): let every rank save after the same step",
                session->rank));
      break;
    }
  }
  const bool due = asked_ && asked_->complete() && machine_.finished_step() == asked_->after_step;
  if (due && idle && saving_ == nullptr) {
    begin_save();
    return {.loads = saving_ != nullptr};
  }
  if (due && asked_->held_since_ns == 0) asked_->held_since_ns = monotonic_ns();
  return {.loads = saving_ != nullptr, .steps = due};
}

// ---- it is under way ----

// Where memory lacks the request ends, and training goes on.
void Job::begin_save() {
  drop_early(/*all=*/true);  // counts of updates are those of the step
  std::shared_ptr<Saving> saving;
  try {
    saving = make_saving();
    ports_.start_save(*this, saving);
  } catch (const std::bad_alloc&) {
    note_no_memory();
    if (saving == nullptr) return drop_asked(no_memory_left());
    saving->status = no_memory_left();
    saving->end_ns = saving->begin_ns;
    return tell_saved(*saving);
  }
  saving_ = std::move(saving);
  log_info("save_begun", "job='{}' folder={} step={} shadow_bytes={}", options_.name, saving_->name,
           saving_->manifest.step, saving_->snapshot->shadow_bytes());
}

// Of what is asked for, which it takes once nothing can fail any more.
std::shared_ptr<Saving> Job::make_saving() {
  auto saving = std::make_shared<Saving>();
  saving->job_id = options_.id;
  saving->job = options_.name;
  saving->name = asked_->name;
  saving->after_step = asked_->after_step;
  saving->shape = options_.shape;
  const uint64_t free_bytes = ports_.free_bytes();  // while what ranks brought is asked_'s
  // What the save before it has held up is this one's.
  const bool held = asked_->held_since_ns != 0;
  if (held) saving->stall_ns = monotonic_ns() - asked_->held_since_ns;
  const checkpoints::Details& details = asked_->parts[0]->details;
  saving->parameters = saved_parameters(options_, details);
  for (uint32_t i = 0; i < options_.shape.n_parameters; ++i) {
    const auto staged = details.updates.find(i);
    const bool on_gpu = options_.shape.on_gpu(options_.places[i].chunk);
    saving->updates.push_back(!on_gpu                           ? updates_->updates(i)
                              : staged == details.updates.end() ? applied_
                                                                : staged->second);
  }
  saving->manifest = manifest_of(*saving, options_, applied_, details.manifest);
  if (saving->manifest.left_out) saving->frozen = frozen_left_out_;
  std::vector<Snapshot::Rank> ranks;
  for (const auto& session : sessions_) {
    SavePart& part = *asked_->parts[session->local_rank];
    if (part.staging.valid()) part.image.resize(options_.shape.image_bytes());
    ranks.push_back({session->memory.get(), session->rank, part.image.data()});
  }
  const uint64_t quarter =
      options_.shape.image_bytes() * options_.shape.first_swing() * local_ranks() / 4;
  const uint64_t shadow_bytes = std::min(details.shadow_bytes.value_or(quarter), free_bytes);
  saving->snapshot =
      std::make_shared<Snapshot>(options_.shape, slots_, std::move(ranks), shadow_bytes);
  saving->begin_ns = monotonic_ns();
  saving->parts.reserve(local_ranks());
  for (std::optional<SavePart>& part : asked_->parts) saving->parts.push_back(std::move(*part));
  asked_.reset();
  for (uint32_t rank = 0; rank < local_ranks(); ++rank) {
    if (!saving->parts[rank].staged_first) continue;
    const bool awaited = saving->snapshot->staged(rank, options_.shape.n_chunks);
    ELIXIR_CHECK(awaited, "a save begins without awaiting the first chunk of rank {}", rank);
  }
  return saving;
}

Status Job::staged_chunk(const Session& session, const shm::StagedChunk& message) {
  if (phase() == JobPhase::kEnding) return Status();
  std::optional<SavePart>* const waiting = asked_ ? &asked_->parts[session.local_rank] : nullptr;
  if (waiting != nullptr && *waiting && (*waiting)->number == message.number) {
    // Counted when the save begins. The one after it needs the memory of this one.
    const bool first = message.chunk == options_.shape.n_chunks && options_.shape.n_gpu_chunks > 0;
    if (first && !std::exchange((*waiting)->staged_first, true)) return Status();
    return error(Code::kProtocol, "chunk {} is staged for a save that has not begun",
                 message.chunk);
  }
  // One that is not under way any more: the trainer hears of it.
  if (saving_ == nullptr || saving_->parts[session.local_rank].number != message.number) {
    return Status();
  }
  if (saving_->snapshot->staged(session.local_rank, message.chunk)) return Status();
  return error(Code::kProtocol, "chunk {} is staged, and it is not the one that is awaited",
               message.chunk);
}

void Job::saving_moved() {
  tell_folder_progress();
  if (saving_ == nullptr) return;
  tell_staged();
  submit_held_tasks();
  open_swings();
}

void Job::tell_staged() {
  const uint32_t written = saving_->snapshot->staged_written();
  const uint32_t more = written - std::exchange(saving_->staged_told, written);
  if (more == 0) return;
  for (const auto& session : sessions_) {
    shm::ControlHeader& header = session->memory->header();
    // Release: the staging memory has been read; partner: the trainer's acquire before it writes.
    header.staged_taken.fetch_add(more, std::memory_order_release);
    shm::fence_before_wakes();
    shm::wake_waiters(header.staged_taken, header.waiters);
  }
}

// Its shadow, once no worker copies there any more.
void Job::free_retired() {
  if (retired_ == nullptr) return;
  work_->set_snapshot(nullptr);
  ports_.free_later(std::move(retired_));
}

// Of updates that wait for writers.
void Job::count_hold(bool held) {
  if (saving_ == nullptr) return;
  int64_t& since_ns = saving_->held_since_ns;
  if (!held && since_ns != 0) saving_->stall_ns += monotonic_ns() - std::exchange(since_ns, 0);
  if (held && since_ns == 0) since_ns = monotonic_ns();
}

void Job::cancel_save() {
  if (saving_ == nullptr) return;
  saving_->cancelled.store(true, std::memory_order_relaxed);
  saving_->snapshot->end();
  submit_held_tasks();  // a writer that hangs wakes nobody
  open_swings();
}

SaveMemory Job::save_memory() const {
  SaveMemory memory;
  const auto add = [&memory](uint64_t bytes, uint64_t there_bytes) {
    memory.bytes += bytes;
    memory.there_bytes += there_bytes;
  };
  for (size_t i = 0; asked_ && i < asked_->parts.size(); ++i) {
    const uint64_t bytes = asked_->parts[i] ? asked_->parts[i]->memory_bytes() : 0;
    add(bytes, bytes);
  }
  if (saving_ != nullptr) add(saving_->memory_bytes(), saving_->there_bytes());
  // Nobody makes copies any more.
  if (retired_ != nullptr) add(retired_->there_bytes(), retired_->there_bytes());
  return memory;
}

void Job::save_over() {
  count_hold(false);
  if (!given_up_) take_released();  // all: its snapshot is over
  ELIXIR_CHECK(retired_ == nullptr, "job '{}' saves twice beside one step", options_.name);
  retired_ = std::move(saving_);
  if (given_up_) return give_up();
  tell_saved(*retired_);
  if (!submitted_) free_retired();
  submit_held_tasks();
  go_on_with_swings();
  advance();
  end_if_possible();
}

// How it ended, to its ranks and in the log.
void Job::tell_saved(const Saving& saving) {
  const FolderOutcome outcome = outcome_of(saving);
  const double write_s = static_cast<double>(outcome.write_ns) * 1e-9;
  const double stall_ms = static_cast<double>(saving.stall_ns) * 1e-6;
  if (saving.status.ok()) {
    ++saves_.published;
    if (saving.frozen) frozen_left_out_ = saving.frozen;
    saves_.step_last = outcome.step;
    saves_.write_s_last = write_s;
    saves_.stall_ms_last = stall_ms;
    log_info("saved",
             "job='{}' folder={} step={} bytes={} seconds={:.2f} stall_ms={:.1f} shadow_peak={} "
             "pruned={} not_finite={}",
             options_.name, saving.name, outcome.step, outcome.bytes, write_s, stall_ms,
             outcome.shadow_peak_bytes, saving.pruned, outcome.not_finite);
  } else {
    ++saves_.failed;
    saves_.error_last = saving.status.message();
    log_warn("save_failed", "job='{}' folder={} step={} text='{}'", options_.name, saving.name,
             outcome.step, saving.status.message());
  }
  for (const auto& session : sessions_) {
    tell_ended(*session, saving.parts[session->local_rank].number, saving.status, outcome);
  }
}

}  // namespace elixir::daemon
