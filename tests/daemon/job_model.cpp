#include "tests/daemon/job_model.h"

#include <algorithm>
#include <utility>

namespace elixir::testing {

using daemon::Activity;
using daemon::ChunkTask;
using daemon::Fault;
using daemon::GradTracker;
using daemon::JobMachine;
using daemon::JobPhase;

#define MODEL_EXPECT(condition, ...)                                  \
  do {                                                                \
    if (!(condition)) throw ModelViolation(fmt::format(__VA_ARGS__)); \
  } while (false)

namespace {

constexpr uint32_t kStepsAhead = 2;  // of the last step committed: client/session
constexpr uint32_t kMostTasks = ModelState::kChunks;

uint64_t mix(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x9e3779b97f4a7c15 + 1; }

}  // namespace

// One state while an event happens to it. The functions on elixird's side have the names and the
// order of daemon::Job's.
class LiveJob {
 public:
  LiveJob(JobModel* model, const ModelState& state)
      : model_(*model),
        options_(model->options_),
        state_(state),
        machine_(model->machines_[state.machine]),
        tracker_(model->trackers_[state.tracker]) {}

  void happen(const ModelEvent& event);
  ModelState result() {
    check();
    state_.machine = model_.keep(machine_);
    state_.tracker = model_.keep(tracker_);
    return state_;
  }

 private:
  using Kind = ModelEvent::Kind;

  // ---- a rank's script ----
  void store(uint32_t rank);
  void store_gradients(uint32_t rank);
  void store_post(uint32_t rank);

  // ---- daemon::Job ----
  void look_at_grads(uint32_t rank, uint32_t chunk);
  void read_records(uint32_t rank);
  void look_at_posted(uint32_t rank);
  void look_at_everything();
  void note(uint32_t rank, uint32_t chunk);
  void note_post(uint32_t rank);
  void note_grads_of_next_step();
  void advance();
  bool start_next();
  void take_ready();
  bool begin_step(uint32_t step);
  void commit_step();
  void step_done();
  void submit_tasks(const std::vector<ChunkTask>& tasks, bool completes_step);
  void work_done();
  void sums_filled();
  void lose_rank(uint32_t rank);
  void detach(uint32_t rank);
  void fail(Fault fault, bool finish_posted);
  void end_if_possible();

  // ---- workers ----
  void do_task(uint32_t chunk);
  void sum_up(uint32_t chunk, const ModelState::Task& task);
  uint8_t contents(uint32_t chunk, uint32_t rank, bool of_sums) const;

  void check() const;
  bool training() const { return machine_.phase() == JobPhase::kTraining; }
  bool takes_early() const {
    const shm::StepRules& rules = options_.rules;
    return rules.sums_all() || rules.rings_all() || tracker_.wants_sums();
  }
  uint8_t all_rounds(uint32_t rank) const {
    return static_cast<uint8_t>((1u << options_.rounds[rank]) - 1);
  }
  uint32_t least_posted() const;

  JobModel& model_;
  const ModelOptions& options_;
  ModelState state_;
  JobMachine machine_;
  GradTracker tracker_;
};

void LiveJob::happen(const ModelEvent& event) {
  switch (event.kind) {
    case Kind::kStore:
      return store(event.rank);
    case Kind::kRingsGrads:
      return look_at_grads(event.rank, event.chunk);
    case Kind::kRingsPost:
      return look_at_posted(event.rank);
    case Kind::kTick:
      return look_at_everything();
    case Kind::kWorker:
      return do_task(event.chunk);
    case Kind::kWorkDone:
      return work_done();
    case Kind::kSumsFilled:
      return sums_filled();
    case Kind::kDies:
      return lose_rank(event.rank);
    case Kind::kLeaves:
      return detach(event.rank);
  }
}

// ---- a rank's script: client/session and client/exchange ----

void LiveJob::store(uint32_t rank) {
  const ModelState::Rank& mine = state_.ranks[rank];
  if (mine.step > options_.steps) {
    if (state_.finished >= options_.steps) detach(rank);
  } else if (mine.round > options_.rounds[rank]) {
    store_post(rank);
  } else {
    store_gradients(rank);
  }
}

void LiveJob::store_gradients(uint32_t rank) {
  ModelState::Rank& mine = state_.ranks[rank];
  const uint32_t chunk = options_.chunks - 1 - mine.chunks_done;
  ModelState::Record& record = mine.records[chunk];
  if (std::max(state_.param_step[chunk], state_.skipped_through) + 1 < mine.step) return;
  if (mine.round > 1 && record.to_sum != record.revision) {
    record.to_sum = record.revision;
    ++mine.publications;
    return;
  }
  if (mine.round > 1 && mine.grad_taken[chunk] < record.revision) return;
  record.step = mine.step;
  record.micro_step = mine.round;
  ++record.revision;
  if (options_.rules.accumulate > 1 || mine.round > 1) record.to_sum = record.revision;
  ++mine.publications;
  if (++mine.chunks_done < options_.chunks) return;
  mine.chunks_done = 0;
  ++mine.round;
}

void LiveJob::store_post(uint32_t rank) {
  ModelState::Rank& mine = state_.ranks[rank];
  if (state_.committed + kStepsAhead < mine.step) return;
  mine.posted = mine.step++;
  mine.round = 1;
}

// ---- doorbells.cpp, publications.cpp ----

void LiveJob::note(uint32_t rank, uint32_t chunk) {
  const ModelState::Record& record = state_.ranks[rank].records[chunk];
  const Status status = tracker_.note(
      rank, chunk,
      {record.step, record.micro_step, record.revision, record.to_sum == record.revision});
  MODEL_EXPECT(status.ok(), "an honest rank {} breaks the rules: {}", rank, status.message());
}

void LiveJob::look_at_grads(uint32_t rank, uint32_t chunk) {
  if (training()) note(rank, chunk);
  state_.rang_ahead = state_.rang_ahead || tracker_.noted(rank, chunk).step < tracker_.step();
  advance();
}

void LiveJob::read_records(uint32_t rank) {
  ModelState::Rank& session = state_.ranks[rank];
  if (!training()) return;
  const uint32_t step = tracker_.step();
  const bool due = options_.reads_ahead_again && session.noted_ahead && session.noted_step != step;
  if (session.publications == session.noted_publications && !due) return;
  session.noted_publications = session.publications;
  session.noted_step = static_cast<uint8_t>(step);
  session.noted_ahead = false;
  for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
    session.noted_ahead = session.noted_ahead || session.records[chunk].step > step;
    note(rank, chunk);
  }
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
    if (options_.rereads_records) read_records(rank);
    MODEL_EXPECT(tracker_.published_all(rank), "step {} begins without rank {}'s gradients", step,
                 rank);
  }
  MODEL_EXPECT(tracker_.check_discards().ok(), "nobody has discarded: {}",
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
      MODEL_EXPECT(state_.squared[chunk][rank] == all_rounds(rank),
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
            .ranks = static_cast<uint8_t>(task.ranks)};
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      mine.revisions[rank] = static_cast<uint8_t>(tracker_.noted(rank, task.chunk).revision);
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

// ---- workers ----

// The rounds of a rank's gradients, a bit each, that a task reads.
uint8_t LiveJob::contents(uint32_t chunk, uint32_t rank, bool of_sums) const {
  if (of_sums) return state_.summed[chunk][rank];
  const ModelState::Record& record = state_.ranks[rank].records[chunk];
  return static_cast<uint8_t>(1u << (record.micro_step - 1));
}

void LiveJob::sum_up(uint32_t chunk, const ModelState::Task& task) {
  if (task.begins_sum) state_.summed[chunk] = {};
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if ((task.ranks >> rank & 1) == 0) continue;
    const ModelState::Record& record = state_.ranks[rank].records[chunk];
    MODEL_EXPECT(record.revision == task.revisions[rank],
                 "revision {} of rank {} is summed in chunk {}, and {} is there",
                 task.revisions[rank], rank, chunk, record.revision);
    const auto round = static_cast<uint8_t>(1u << (record.micro_step - 1));
    MODEL_EXPECT((state_.summed[chunk][rank] & round) == 0,
                 "round {} of rank {} is summed twice in chunk {}", record.micro_step, rank, chunk);
    // One order of additions for all jobs: a round's gradients of all ranks that have it together.
    for (uint32_t other = 0; other < options_.ranks; ++other) {
      if (state_.ranks[other].gone && state_.ranks[other].posted < state_.step_in_work) continue;
      const bool brings = options_.rounds[other] >= record.micro_step;
      MODEL_EXPECT(((task.ranks >> other & 1) != 0) == brings,
                   "round {} of chunk {} is summed of ranks {:#b}", record.micro_step, chunk,
                   task.ranks);
    }
    state_.summed[chunk][rank] |= round;
    state_.ranks[rank].grad_taken[chunk] = record.revision;
  }
}

void LiveJob::do_task(uint32_t chunk) {
  const ModelState::Task task = std::exchange(state_.tasks[chunk], {});
  if (task.sum_up) sum_up(chunk, task);
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    const uint8_t have = contents(chunk, rank, task.of_sums);
    if (task.squares) state_.squared[chunk][rank] = have;
    MODEL_EXPECT(!task.update || have == all_rounds(rank),
                 "step {} updates chunk {} with rounds {:#b} of rank {}", state_.step_in_work,
                 chunk, have, rank);
  }
  if (task.update) {
    const uint32_t before = std::max(state_.param_step[chunk], state_.skipped_through);
    MODEL_EXPECT(before + 1 == state_.step_in_work, "step {} updates chunk {} of step {}",
                 state_.step_in_work, chunk, before);
    state_.param_step[chunk] = state_.step_in_work;
    state_.summed[chunk] = {};
  }
  const bool last = std::none_of(state_.tasks.begin(), state_.tasks.end(),
                                 [](const auto& other) { return other.in_flight; });
  if (last && state_.completes_step) state_.finished = state_.step_in_work;
}

// ---- invariants ----

uint32_t LiveJob::least_posted() const {
  uint32_t least = UINT32_MAX;
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    least = std::min<uint32_t>(least, state_.ranks[rank].posted);
  }
  return least;
}

void LiveJob::check() const {
  machine_.check_invariant();
  tracker_.check_invariant();
  MODEL_EXPECT(state_.committed <= least_posted(), "step {} is committed, {} posted by all",
               state_.committed, least_posted());
  MODEL_EXPECT(state_.finished <= state_.committed, "step {} is finished, {} committed",
               state_.finished, state_.committed);
  if (!state_.over) return;
  MODEL_EXPECT(state_.finished == state_.committed, "the job ended within step {}",
               state_.committed);
  if (const std::optional<Fault>& fault = machine_.fault()) {
    MODEL_EXPECT(fault->rank < options_.ranks, "a fault names nobody: {}", fault->text);
    MODEL_EXPECT(state_.finished >= state_.promised, "step {} was promised, {} finished",
                 state_.promised, state_.finished);
    return;
  }
  // Who says goodbye before its step is finished has given it up.
  MODEL_EXPECT(state_.finished == least_posted(),
               "all ranks posted step {}, step {} is finished, and there is no fault",
               least_posted(), state_.finished);
}

// ---- JobModel ----

JobModel::JobModel(const ModelOptions& options) : options_(options) {}

ModelState JobModel::start() {
  JobMachine machine(ComputeType::kFp32, options_.ranks, {}, 0);
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    ELIXIR_CHECK(machine.claim(rank, rank).ok(), "rank {} of {}", rank, options_.ranks);
  }
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) machine.attached(rank);
  ModelState state;
  state.machine = keep(machine);
  state.tracker = keep(GradTracker(options_.ranks, options_.chunks, options_.rules));
  return state;
}

std::vector<ModelEvent> JobModel::events(const ModelState& state) const {
  using Kind = ModelEvent::Kind;
  std::vector<ModelEvent> events;
  if (state.over) return events;
  bool working = false;
  for (uint8_t chunk = 0; chunk < options_.chunks; ++chunk) {
    if (!state.tasks[chunk].in_flight) continue;
    working = true;
    events.push_back({Kind::kWorker, 0, chunk});
  }
  const bool active = machines_[state.machine].activity() != Activity::kNone;
  if (active && !working) events.push_back({Kind::kWorkDone});
  if (state.filling_sums) events.push_back({Kind::kSumsFilled});
  for (uint8_t rank = 0; rank < options_.ranks; ++rank) {
    for (uint8_t chunk = 0; chunk < options_.chunks; ++chunk) {
      events.push_back({Kind::kRingsGrads, rank, chunk});
    }
    events.push_back({Kind::kRingsPost, rank});
    if (state.ranks[rank].gone) continue;
    events.push_back({Kind::kStore, rank});
    if (options_.dies) events.push_back({Kind::kDies, rank});
    if (options_.leaves) events.push_back({Kind::kLeaves, rank});
  }
  if (options_.ticks) events.push_back({Kind::kTick});
  return events;
}

ModelState JobModel::after(const ModelState& state, ModelEvent event) {
  LiveJob live(this, state);
  live.happen(event);
  return live.result();
}

uint32_t JobModel::keep(const JobMachine& machine) {
  uint64_t hash =
      mix(static_cast<uint64_t>(machine.phase()), static_cast<uint64_t>(machine.activity()));
  hash = mix(mix(hash, machine.committed_step()), machine.finished_step());
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    hash = mix(hash, machine.posted_step(rank));
  }
  const auto [begin, end] = known_machines_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (machines_[at->second] == machine) return at->second;
  }
  const auto number = static_cast<uint32_t>(machines_.size());
  machines_.push_back(machine);
  known_machines_.emplace(hash, number);
  return number;
}

uint32_t JobModel::keep(const GradTracker& tracker) {
  uint64_t hash = mix(tracker.step(), tracker.anything_ready() ? 1 : 0);
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
      const daemon::Publication& noted = tracker.noted(rank, chunk);
      hash = mix(mix(hash, noted.revision), noted.to_sum ? 1 : 0);
    }
  }
  const auto [begin, end] = known_trackers_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (trackers_[at->second] == tracker) return at->second;
  }
  const auto number = static_cast<uint32_t>(trackers_.size());
  trackers_.push_back(tracker);
  known_trackers_.emplace(hash, number);
  return number;
}

std::string ModelEvent::text() const {
  constexpr const char* kNames[] = {"store",        "rings grads", "rings post", "tick",  "worker",
                                    "work is done", "sums filled", "dies",       "leaves"};
  return fmt::format("{} {}.{}", kNames[static_cast<uint32_t>(kind)], rank, chunk);
}

}  // namespace elixir::testing
