// What daemon::Job does with a JobMachine and a GradTracker, in its words.

#include "tests/daemon/live_job.h"

#include <utility>

namespace elixir::testing {

using daemon::Activity;
using daemon::ChunkTask;
using daemon::Fault;
using daemon::JobPhase;

namespace {

constexpr uint32_t kMostTasks = ModelState::kChunks;

}  // namespace

// ---- doorbells.cpp, publications.cpp ----

void LiveJob::note(uint32_t rank, uint32_t chunk) {
  const ModelState::Record& record = state_.ranks[rank].records[chunk];
  const Status status = tracker_.note(
      rank, chunk,
      {record.step, record.micro_step, record.revision, record.to_sum == record.revision,
       options_.tells_discards ? record.discards : 0u});
  MODEL_EXPECT(status.ok(), "an honest rank {} breaks the rules: {}", rank, status.message());
}

void LiveJob::look_at_grads(uint32_t rank, uint32_t chunk) {
  if (training()) {
    note(rank, chunk);
    note_awaited(rank);
  }
  state_.rang_ahead = state_.rang_ahead || tracker_.noted(rank, chunk).step < tracker_.step();
  advance();
}

void LiveJob::read_records(uint32_t rank) {
  ModelState::Rank& session = state_.ranks[rank];
  if (!training()) return;
  const uint32_t step = tracker_.step();
  const bool due = options_.reads_ahead_again && session.noted_ahead && session.noted_step != step;
  if (session.publications == session.noted_publications && !due) return note_awaited(rank);
  session.noted_publications = session.publications;
  session.noted_step = static_cast<uint8_t>(step);
  session.noted_ahead = false;
  for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
    session.noted_ahead = session.noted_ahead || session.records[chunk].step > step;
    note(rank, chunk);
  }
  note_awaited(rank);
}

void LiveJob::note_awaited(uint32_t rank) {
  if (!tracker_.wants_sums()) return;
  tracker_.note_awaited(rank, state_.ranks[rank].awaited);
}

void LiveJob::take_what_is_awaited() {
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) read_records(rank);
  if (tracker_.all_wait()) tracker_.sum_what_is_awaited();
}

void LiveJob::note_post(uint32_t rank) {
  if (options_.post_reads_records && (options_.ranks > 1 || takes_early())) read_records(rank);
  tracker_.note_posted(rank);
}

void LiveJob::note_grads_of_next_step() {
  const bool looks = std::exchange(state_.rang_ahead, false) || takes_early();
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    const bool posted = machine_.posted_step(rank) >= tracker_.step();
    if (posted) note_post(rank);
    if (looks && !posted) read_records(rank);
  }
}

void LiveJob::look_at_posted(uint32_t rank) {
  const uint32_t posted = state_.ranks[rank].posted;
  if (posted == machine_.posted_step(rank)) return;
  const Status status = machine_.note_posted(rank, posted);
  MODEL_EXPECT(status.ok(), "an honest rank {} breaks the rules: {}", rank, status.message());
  if (posted == tracker_.step()) note_post(rank);
  advance();
  if (std::optional<Fault> fault = machine_.waiting_for_detached()) fail(std::move(*fault), false);
}

void LiveJob::look_at_everything() {
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    read_records(rank);
    advance();
    look_at_posted(rank);
  }
}

// ---- dispatcher.cpp ----

void LiveJob::advance() {
  if (training() && tracker_.lacks_sums()) state_.filling_sums = true;
  while (start_next()) note_grads_of_next_step();
}

bool LiveJob::start_next() {
  if (training() && options_.sums_awaited && tracker_.all_wait()) take_what_is_awaited();
  const daemon::NextActivity next = machine_.start_next(tracker_.anything_ready());
  if (next.activity == Activity::kTake) take_ready();
  if (next.activity != Activity::kStep) return false;
  return begin_step(next.step) && machine_.activity() != Activity::kStep;
}

void LiveJob::take_ready() {
  std::vector<ChunkTask> tasks;
  tasks.reserve(kMostTasks);
  state_.step_in_work = static_cast<uint8_t>(tracker_.step());
  tracker_.start_ready(&tasks);
  submit_tasks(tasks, /*completes_step=*/false);
}

bool LiveJob::begin_step(uint32_t step) {
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    read_records(rank);
    MODEL_EXPECT(tracker_.published_all(rank), "step {} begins without rank {}'s gradients", step,
                 rank);
  }
  MODEL_EXPECT(tracker_.check_discards().ok(), "all have discarded alike: {}",
               tracker_.check_discards().message());
  state_.step_in_work = static_cast<uint8_t>(step);
  std::vector<ChunkTask> tasks;
  tasks.reserve(kMostTasks);
  if (options_.rules.norms != 0) tracker_.start_squares(&tasks);
  state_.updating = false;
  if (tasks.empty()) {
    commit_step();
  } else {
    submit_tasks(tasks, /*completes_step=*/false);
  }
  return true;
}

void LiveJob::commit_step() {
  state_.updating = true;
  const uint8_t step = state_.step_in_work;
  for (uint32_t chunk = 0; options_.rules.norms != 0 && chunk < options_.chunks; ++chunk) {
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      MODEL_EXPECT(state_.squared[chunk][rank] == all_rounds(rank, chunk),
                   "step {} is judged by squares of rounds {:#b} of rank {} in chunk {}", step,
                   state_.squared[chunk][rank], rank, chunk);
    }
  }
  state_.squared = {};
  MODEL_EXPECT(state_.committed + 1 == step, "step {} is committed after step {}", step,
               state_.committed);
  state_.committed = step;
  std::vector<ChunkTask> tasks;
  tasks.reserve(kMostTasks);
  tracker_.start_updates(&tasks);
  tracker_.next_step();
  if (step == options_.skipped_step) {
    state_.skipped_through = state_.finished = step;
    state_.summed = {};
    return step_done();
  }
  if (!tasks.empty()) return submit_tasks(tasks, /*completes_step=*/true);
  state_.finished = step;
  step_done();
}

void LiveJob::step_done() { machine_.finish_activity(); }

void LiveJob::submit_tasks(const std::vector<ChunkTask>& tasks, bool completes_step) {
  state_.completes_step = completes_step;
  for (const ChunkTask& task : tasks) {
    ModelState::Task& mine = state_.tasks[task.chunk];
    MODEL_EXPECT(!mine.in_flight, "chunk {} is in two tasks", task.chunk);
    mine = {.in_flight = true,
            .sum_up = task.sum_up,
            .begins_sum = task.begins_sum,
            .of_sums = task.of_sums,
            .squares = task.squares,
            .update = task.update,
            .ranks = static_cast<uint8_t>(task.ranks),
            .dropped = static_cast<uint8_t>(task.dropped)};
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      const daemon::Publication& noted = tracker_.noted(rank, task.chunk);
      mine.revisions[rank] = static_cast<uint8_t>(noted.revision);
      mine.discards[rank] = static_cast<uint8_t>(noted.discards);
    }
  }
}

void LiveJob::work_done() {
  const uint32_t steps_before = machine_.finished_step();
  if (machine_.activity() != Activity::kStep) {
    machine_.finish_activity();
  } else if (state_.updating) {
    step_done();
  } else {
    commit_step();
  }
  if (machine_.finished_step() != steps_before) note_grads_of_next_step();
  advance();
  end_if_possible();
}

void LiveJob::sums_filled() {
  state_.filling_sums = false;
  tracker_.sums_are_there();
  advance();
  end_if_possible();
}

// ---- ending.cpp ----

void LiveJob::lose_rank(uint32_t rank) {
  state_.ranks[rank].gone = true;
  if (training()) state_.promised = static_cast<uint8_t>(least_posted());
  for (uint32_t other = 0; other < options_.ranks; ++other) look_at_posted(other);
  fail(daemon::fault_of_all(Code::kPeerLost, rank, "died"), /*finish_posted=*/true);
}

void LiveJob::detach(uint32_t rank) {
  look_at_posted(rank);
  if (state_.ranks[rank].gone) return;
  read_records(rank);
  state_.ranks[rank].gone = true;
  if (options_.sums_without_gone) tracker_.note_gone(rank, machine_.posted_step(rank));
  if (std::optional<Fault> fault = machine_.detach(rank)) return fail(std::move(*fault), false);
  advance();
  end_if_possible();
}

void LiveJob::fail(Fault fault, bool finish_posted) {
  machine_.fail(std::move(fault), finish_posted);
  advance();
  end_if_possible();
}

void LiveJob::end_if_possible() {
  if (machine_.phase() != JobPhase::kEnding || state_.over) return;
  if (machine_.activity() != Activity::kNone || state_.filling_sums) return;
  state_.over = true;
  for (ModelState::Rank& rank : state_.ranks) rank.gone = true;
}

}  // namespace elixir::testing
