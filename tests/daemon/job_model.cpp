#include "tests/daemon/job_model.h"

#include <algorithm>
#include <utility>

#include "tests/daemon/live_job.h"

namespace elixir::testing {

using daemon::Activity;
using daemon::Fault;
using daemon::GradTracker;
using daemon::JobMachine;

namespace {

constexpr uint32_t kStepsAhead = 2;  // of the last step committed: client/session

uint64_t mix(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x9e3779b97f4a7c15 + 1; }

// Its index in `all`, which has each value once; `known` finds them by their hashes.
template <typename Value, typename Values, typename Known>
uint32_t number_of(const Value& value, uint64_t hash, Values& all, Known& known) {
  const auto [begin, end] = known.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (all[at->second] == value) return at->second;
  }
  all.push_back(value);
  return known.emplace(hash, static_cast<uint32_t>(all.size() - 1))->second;
}

}  // namespace

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
  } else if (mine.round > rounds(rank, mine.discards) + (all_in_all_passes() ? 0 : 1)) {
    store_post(rank);
  } else {
    store_gradients(rank);
  }
}

// False: it may be written. Else the rank's next store on the way there, or none.
bool LiveJob::waits_for_slot(uint32_t rank, uint32_t chunk, uint32_t micro_step) {
  ModelState::Rank& mine = state_.ranks[rank];
  ModelState::Record& record = mine.records[chunk];
  if (std::max(state_.param_step[chunk], state_.skipped_through) + 1 < mine.step) return true;
  if (micro_step == 1 && mine.sum_step[chunk] != mine.step) return false;
  if (record.to_sum != record.revision) {
    record.to_sum = record.revision;
    ++mine.publications;
    return true;
  }
  const bool taken = mine.grad_taken[chunk] >= record.revision;
  const uint8_t awaited = taken || !options_.waits ? 0 : static_cast<uint8_t>(chunk + 1);
  return std::exchange(mine.awaited, awaited) != awaited || !taken;
}

// A pass, or, after the last one, zeros of what was in none.
void LiveJob::store_gradients(uint32_t rank) {
  ModelState::Rank& mine = state_.ranks[rank];
  const uint32_t chunk = options_.chunks - 1 - mine.chunks_done;
  const uint32_t before = micro_steps(rank, chunk, mine.round - 1, mine.discards);
  const bool completes = mine.round > rounds(rank, mine.discards);
  const uint32_t micro_step =
      completes ? (before == 0 ? 1 : 0) : micro_steps(rank, chunk, mine.round, mine.discards);
  if (micro_step > (completes ? 0 : before)) {
    if (waits_for_slot(rank, chunk, micro_step)) return;
    ModelState::Record& record = mine.records[chunk];
    record.step = mine.step;
    record.micro_step = static_cast<uint8_t>(micro_step);
    record.discards = mine.discards;
    ++record.revision;
    if (options_.rules.accumulate > 1 || micro_step > 1) {
      record.to_sum = record.revision;
      mine.sum_step[chunk] = mine.step;
    }
    ++mine.publications;
  }
  if (++mine.chunks_done < options_.chunks) return;
  mine.chunks_done = 0;
  ++mine.round;
  if (mine.discards == last_discards(rank) || mine.round <= options_.dropped[rank]) return;
  ++mine.discards;  // zero_grad()
  mine.round = 1;
}

void LiveJob::store_post(uint32_t rank) {
  ModelState::Rank& mine = state_.ranks[rank];
  if (state_.committed + kStepsAhead < mine.step) return;
  mine.posted = mine.step++;
  mine.round = 1;
  mine.discards = 0;
}

// ---- workers ----

// The rounds of a rank's gradients, a bit each, that a task reads.
uint8_t LiveJob::contents(uint32_t chunk, uint32_t rank, const ModelState::Task& task) const {
  if (task.of_sums) return state_.summed[chunk][rank];
  const ModelState::Record& record = state_.ranks[rank].records[chunk];
  return record.revision == task.revisions[rank] ? round_bit(rank, record) : kSpoiled;
}

void LiveJob::sum_up(uint32_t chunk, const ModelState::Task& task) {
  if (task.begins_sum) state_.summed[chunk] = {};
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if ((task.ranks >> rank & 1) == 0) continue;
    const ModelState::Record& record = state_.ranks[rank].records[chunk];
    state_.ranks[rank].grad_taken[chunk] = task.revisions[rank];
    // What is dropped nobody waits for: other gradients may be there.
    if (record.revision != task.revisions[rank] && record.discards > task.discards[rank]) {
      state_.summed[chunk][rank] |= kSpoiled;
      continue;
    }
    MODEL_EXPECT(record.revision == task.revisions[rank],
                 "revision {} of rank {} is summed in chunk {}, and {} is there",
                 task.revisions[rank], rank, chunk, record.revision);
    const uint8_t round = round_bit(rank, record);
    MODEL_EXPECT((state_.summed[chunk][rank] & round) == 0,
                 "round {} of rank {} is summed twice in chunk {}", record.micro_step, rank, chunk);
    // One order of additions for all jobs: a round's gradients of all ranks that have it together.
    for (uint32_t other = 0; all_in_all_passes() && other < options_.ranks; ++other) {
      if (state_.ranks[other].gone && state_.ranks[other].posted < state_.step_in_work) continue;
      const bool brings = rounds(other, record.discards) >= record.micro_step;
      MODEL_EXPECT(((task.ranks >> other & 1) != 0) == brings,
                   "round {} of chunk {} is summed of ranks {:#b}", record.micro_step, chunk,
                   task.ranks);
    }
    state_.summed[chunk][rank] |= round;
  }
}

void LiveJob::do_task(uint32_t chunk) {
  const ModelState::Task task = std::exchange(state_.tasks[chunk], {});
  if (task.sum_up) {
    sum_up(chunk, task);
    state_.sum_order[chunk] = static_cast<uint8_t>(state_.sum_order[chunk] << 2 | task.ranks);
  }
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if ((task.dropped >> rank & 1) != 0) {
      state_.ranks[rank].grad_taken[chunk] = task.revisions[rank];
    }
    const uint8_t have = contents(chunk, rank, task);
    if (task.squares) state_.squared[chunk][rank] = have;
    MODEL_EXPECT(!task.update || have == all_rounds(rank, chunk),
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
  return number_of(machine, hash, machines_, known_machines_);
}

uint32_t JobModel::keep(const GradTracker& tracker) {
  uint64_t hash = mix(tracker.step(), tracker.anything_ready() ? 1 : 0);
  hash = mix(hash, tracker.all_wait() ? 1 : 0);
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
      const daemon::Publication& noted = tracker.noted(rank, chunk);
      hash = mix(mix(hash, noted.revision), noted.to_sum ? 1 : 0);
    }
  }
  return number_of(tracker, hash, trackers_, known_trackers_);
}

std::string ModelEvent::text() const {
  constexpr const char* kNames[] = {"store",        "rings grads", "rings post", "tick",  "worker",
                                    "work is done", "sums filled", "dies",       "leaves"};
  return fmt::format("{} {}.{}", kNames[static_cast<uint32_t>(kind)], rank, chunk);
}

}  // namespace elixir::testing
