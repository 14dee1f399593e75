// Data path, hop 3 of 6.
//
// Gradients that every rank has published are summed up early, where the job wants it. A step that
// every rank has posted is checked, judged, committed, and handed to the workers as the slices cut
// at attach.

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/job.h"
#include "shm/futex.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kEveryRank = ~uint64_t{0};

}  // namespace

// Starts what can be started; at most one activity of a job is in flight.
void Job::advance() {
  const bool training = phase() == JobPhase::kTraining;
  if (training && tracker_.lacks_sums() && sums_progress_ == nullptr) fill_sums();
  while (start_next()) note_grads_of_next_step();
}

// True when what it started is over already.
bool Job::start_next() {
  if (phase() == JobPhase::kTraining && tracker_.all_wait()) take_what_is_awaited();
  const NextActivity next =
      machine_.start_next(tracker_.anything_ready(early_limits()), look_at_saves());
  switch (next.activity) {
    case Activity::kNone:
      return false;
    case Activity::kLoad:
      if (phase() == JobPhase::kTraining) drop_early(/*all=*/true);
      work_->begin_load(next.load.rank, next.load.chunk, next.load.part);
      submit();
      return false;
    case Activity::kRestore:
      begin_restore();
      return false;
    case Activity::kTake:
      take_ready();
      return false;
    case Activity::kStep:
      return begin_step(next.step) && !step_in_hand();
  }
  return false;
}

void Job::submit_tasks(bool completes_step) {
  completes_step_ = completes_step;
  for (const ChunkTask& task : tasks_) {
    if (task.update || task.early) updates_->update(task.chunk);
  }
  std::erase_if(tasks_, [this](ChunkTask& task) {
    const bool held = !may_begin(task);
    if (held) held_tasks_.add(task);
    return held;
  });
  submit_open_tasks();
}

// False: the save under way holds it.
bool Job::may_begin(ChunkTask& task) {
  if (saving_ == nullptr || !task.update) return true;
  const Snapshot::Gate gate = saving_->snapshot->ask(task.chunk, slots_.of(task.chunk));
  task.copy = gate == Snapshot::Gate::kCopy;
  return gate != Snapshot::Gate::kHeld;
}

// Those that nothing holds. While there is none, the time is the save's stall.
void Job::submit_open_tasks() {
  if (tasks_.empty()) return count_hold(true);
  count_hold(false);
  if (saving_ != nullptr) work_->set_snapshot(saving_->snapshot);
  step_work_.completes_step = completes_step_ && held_tasks_.empty();
  work_->begin_tasks(tasks_, step_work_, tracker_, monotonic_ns());
  tasks_.clear();
  submit();
}

// What the save under way holds no longer: slots become spare, tasks may begin. REQUIRES: workers
// have nothing, or the save is over. Otherwise a task that copies could outlive its snapshot here.
void Job::take_released() {
  if (saving_ == nullptr) return;
  const StateSlots& saved = saving_->snapshot->slots();
  saving_->snapshot->take_released(&released_);
  for (const uint32_t chunk : released_) {
    if (options_.shape.swings(chunk)) continue;  // open_swings() looks
    if (slots_.of(chunk) != saved.of(chunk)) {
      slots_.give_back(saved.of(chunk));
      continue;
    }
    tasks_.push_back(held_tasks_.take(chunk));
    const bool begins = may_begin(tasks_.back());
    ELIXIR_CHECK(begins, "chunk {} is held again", chunk);
  }
}

// Of an activity that a save has held up: it may go on.
void Job::submit_held_tasks() {
  if (submitted_) return;
  take_released();
  const Activity activity = machine_.activity();
  const bool updates = activity == Activity::kStep || activity == Activity::kTake;
  if (updates && has_tasks()) submit_open_tasks();
}

void Job::submit() {
  ELIXIR_CHECK(work_ != nullptr && !over_, "work for job '{}', whose memory is not there",
               options_.name);
  submitted_ = true;
  ports_.submit(work_.get());
}

// ---- before the post ----

// Gradients are taken before the post, as a rule.
bool Job::takes_early() const {
  const shm::StepRules& rules = options_.rules;
  return rules.sums_all() || rules.rings_all() || tracker_.wants_sums();
}

// Chunks that all ranks have published: the sums of this micro-step, their squares, and immediate
// updates after the last one.
void Job::take_ready() {
  const uint32_t step = tracker_.step();
  step_work_.step = step;
  tracker_.start_ready(&tasks_, early_limits());
  begin_early_tasks();
  const StepViolation violation =
      options_.rules.immediate != 0 ? open_immediate(step) : StepViolation();
  if (!violation.text.empty()) {
    machine_.finish_activity();
    return end_session(*sessions_[violation.rank], Status(Code::kProtocol, violation.text));
  }
  if (options_.rules.early != 0) open_early(step);
  submit_tasks(/*completes_step=*/false);
}

// ---- from the post on ----

StepViolation Job::check_post(uint32_t step) {
  StepViolation violation = check_step_records(records_, step, options_.shape.n_moments);
  if (violation.text.empty() && options_.rules.immediate != 0) {
    violation = check_immediate(records_, opened_ ? &*opened_ : nullptr);
  }
  const bool collective = options_.shape.exchange == shm::Exchange::kCollective;
  if (violation.text.empty() && collective && verdict_terms(records_[0]).needs_norm()) {
    violation = check_equal_norms(records_);
  }
  return violation.text.empty() ? check_grads(step) : violation;
}

// Every rank has published gradients of the step in every chunk, since it dropped some last.
StepViolation Job::check_grads(uint32_t step) {
  for (const auto& session : sessions_) {
    const uint32_t rank = session->local_rank;
    const Status status = read_records(*session, /*by_tick=*/false);
    if (!status.ok()) return {rank, status.message()};
    for (uint32_t chunk = 0; !tracker_.published_all(rank) && chunk < n_chunks(); ++chunk) {
      if (tracker_.published(rank, chunk)) continue;
      const shm::GradRecord& record = session->memory->grad_record(chunk);
      const shm::GradPublication last = record.grad_publication.load(std::memory_order_relaxed);
      const bool discarded = tracker_.noted(rank, chunk).step == step;
      return {rank,
              fmt::format("step {} posted with the gradients of step {} (revision {}) in "
                          "chunk {}{}",
                          step, record.grad_step.load(std::memory_order_relaxed), last.revision,
                          chunk, discarded ? ", which it has discarded since" : "")};
    }
  }
  for (uint32_t chunk = 0; chunk < n_chunks(); ++chunk) {
    StepViolation violation = read_groups(chunk, step, records_[0].n_groups);
    if (!violation.text.empty()) return violation;
  }
  const StepViolation parts = updates_->check_parts(step);
  return parts.text.empty() ? StepViolation{0, tracker_.check_discards().message()} : parts;
}

StepViolation Job::read_groups(uint32_t chunk, uint32_t step, uint32_t n_groups) {
  return updates_->read(chunk, step, memories_, n_groups);
}

// False when a rank broke the rules; its session is then over.
bool Job::begin_step(uint32_t step) {
  records_.clear();
  for (const auto& session : sessions_) {
    records_.push_back(session->memory->copy_step_record(step));
  }
  made_for_others_ = opened_ && !same_hyperparameters(records_[0], *opened_);
  drop_early(/*all=*/made_for_others_);
  const StepViolation violation = check_post(step);
  if (!violation.text.empty()) {
    machine_.refuse_step();
    end_session(*sessions_[violation.rank], Status(Code::kProtocol, violation.text));
    return false;
  }
  metric_mean_ = mean_metric(records_);
  step_work_.step = step;
  tasks_.clear();
  if (options_.shape.exchange == shm::Exchange::kHost && verdict_terms(records_[0]).needs_norm()) {
    tracker_.start_squares(&tasks_);
  }
  stage_ = StepStage::kTaking;
  if (tasks_.empty()) {
    commit_step();
  } else {
    submit_tasks(/*completes_step=*/false);
  }
  return true;
}

optim::Verdict Job::judge_step() const {
  const optim::VerdictTerms terms = verdict_terms(records_[0]);
  optim::Verdict verdict;
  verdict.grad_scale = terms.grad_scale;
  if (!terms.needs_norm()) return verdict;
  if (options_.shape.exchange == shm::Exchange::kCollective) {
    return optim::judge(records_[0].norm, terms);
  }
  NormSum squares = work_->squares();
  for (const shm::StepRecord& record : records_) add(squares, record.norm);
  return optim::judge(squares, terms);
}

// Elements that the workers update in the step: not those of swing chunks.
uint64_t Job::workers_numel() const {
  uint64_t numel = 0;
  for (uint32_t chunk = 0; chunk < options_.shape.first_swing(); ++chunk) {
    numel += updates_->updated_numel(chunk, kEveryRank);
  }
  return numel;
}

// Every rank has posted it and its norm is known: what becomes of it is told, and done.
void Job::commit_step() {
  stage_ = StepStage::kUpdating;
  verdict_ = judge_step();
  const bool early = early_stands();
  settle_early(/*all=*/!early);
  early_.note_verdict(!verdict_.skipped && verdict_.grad_scale == records_[0].grad_scale &&
                      !made_for_others_);
  if (!verdict_.skipped) {  // a skipped step has no number
    ++applied_;
    if (!early) updates_->begin(records_[0], applied_, verdict_.grad_scale);
  }
  step_work_.updated_numel = verdict_.skipped ? 0 : workers_numel();
  publish_verdict();
  tracker_.start_updates(&tasks_, early);
  const bool swings = options_.shape.n_swing_chunks > 0 && !verdict_.skipped;
  if (swings) begin_swings();
  tracker_.next_step();  // before a worker lets a trainer publish it
  opened_.reset();
  step_work_.early_chunks = early_.made();
  take_early();
  step_work_.early_hits = static_cast<uint32_t>(moved_.size());
  step_work_.swing_chunks = swings ? options_.shape.n_swing_chunks : 0;
  if (swings) {
    open_swings();
    if (!tasks_.empty()) return submit_tasks(/*completes_step=*/false);
    end_swings();
    return;
  }
  if (!verdict_.skipped && !tasks_.empty()) return submit_tasks(/*completes_step=*/true);
  if (verdict_.skipped) {
    work_->skip_step(step_work_);
  } else {
    work_->complete_step(step_work_);  // there is nothing left to update
  }
  step_done();
}

void Job::publish_verdict() const {
  const uint32_t step = step_work_.step;
  uint64_t asks = 0;  // the ranks' own: elixird hands them on
  for (const shm::StepRecord& record : records_) asks |= record.asks;
  for (const auto& session : sessions_) {
    shm::StepResult& result = session->memory->step_result(step);
    result.step = step;
    result.skipped = verdict_.skipped ? 1 : 0;
    result.metric_mean = metric_mean_;
    result.grad_norm = verdict_.grad_norm;
    result.grad_scale = verdict_.grad_scale;
    result.applied = applied_;
    result.asks = asks;
    // Release: the result; partner: the trainer's acquire of committed_step.
    session->memory->header().committed_step.store(step, std::memory_order_release);
  }
  shm::fence_before_wakes();
  for (const auto& session : sessions_) {
    const shm::ControlHeader& header = session->memory->header();
    shm::wake_waiters(header.committed_step, header.waiters);
  }
}

// ---- the workers are done ----

void Job::work_done() {
  ELIXIR_CHECK(!over_, "work was in flight when job '{}' was over", options_.name);
  submitted_ = false;
  if (given_up_) return give_up();
  free_retired();
  take_released();
  if (machine_.activity() != Activity::kLoad && has_tasks()) {
    return submit_open_tasks();
  }
  const uint32_t steps_before = machine_.finished_step();
  switch (machine_.activity()) {
    case Activity::kLoad:
      load_done();
      break;
    case Activity::kStep:
      if (stage_ == StepStage::kTaking) {
        commit_step();
      } else if (swings_.begun()) {
        end_swings();
      } else {
        step_done();
      }
      break;
    default:
      machine_.finish_activity();
  }
  if (machine_.finished_step() != steps_before) note_grads_of_next_step();
  advance();
  end_if_possible();
}

void Job::load_done() {
  const Load load = machine_.load_in_flight();
  const JobPhase before = phase();
  machine_.finish_activity();
  shm::ChunkRecord& record = sessions_[load.rank]->memory->chunk_record(load.slot);
  // Release: the slot has been read; partner: the trainer's acquire before it writes there again.
  record.loads_taken.store(machine_.loads_taken(load.rank, load.slot), std::memory_order_release);
  shm::fence_before_wakes();
  shm::wake_waiters(record.loads_taken, record.waiters);
  if (before == JobPhase::kTraining || phase() != JobPhase::kTraining) return;
  log_info("loaded", "job='{}' seconds={:.2f}", options_.name, seconds_since(phase_since_ns_));
  answer_ready();
}

void Job::step_done() {
  machine_.finish_activity();
  updates_->next_step();
  ++statistics_.steps;
  statistics_.update_ns_last = work_->update_ns();
  statistics_.update_ns_sum += work_->update_ns();
  statistics_.updated_numel_last = step_work_.updated_numel;
  statistics_.updated_numel_sum += statistics_.updated_numel_last;
  statistics_.early_chunks_last = step_work_.early_chunks;
  statistics_.early_hits_last = step_work_.early_hits;
  statistics_.early_chunks_sum += step_work_.early_chunks;
  statistics_.early_hits_sum += step_work_.early_hits;
  statistics_.verdict_last = verdict_;
  statistics_.skipped += verdict_.skipped ? 1 : 0;
  std::swap(statistics_.records_last, records_);
  statistics_.metric_mean_last = metric_mean_;
}

}  // namespace elixir::daemon
