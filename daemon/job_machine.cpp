#include "daemon/job_machine.h"

#include <algorithm>
#include <utility>

#include "base/compute_type_names.h"

namespace elixir::daemon {

Fault fault_of_all(Code code, uint32_t rank, std::string text) {
  Fault fault;
  fault.code = fault.others_code = code;
  fault.rank = rank;
  fault.text = fault.others_text = std::move(text);
  return fault;
}

JobMachine::JobMachine(ComputeType type, uint32_t ranks, Chunks chunks, uint32_t loaders)
    : type_(type), chunks_(chunks), ranks_(ranks) {
  const uint32_t n_chunks = chunks.on_cpu + chunks.frozen;
  if (n_chunks == 0) return;
  for (uint32_t i = 0; i < loaders; ++i) {
    loaders_.push_back({std::vector<LoadState>(n_chunks, LoadState::kNothing),
                        std::vector<bool>(n_chunks, false), std::vector<bool>(n_chunks, false),
                        std::vector<uint32_t>(n_chunks, 0), n_chunks});
  }
}

bool JobMachine::all_detached() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.detached; });
}

bool JobMachine::all_attached() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.attached; });
}

std::vector<uint32_t> JobMachine::missing_ranks() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].claimed) missing.push_back(rank);
  }
  return missing;
}

uint32_t JobMachine::least_posted() const {
  uint32_t least = UINT32_MAX;
  for (const Rank& rank : ranks_) least = std::min(least, rank.posted);
  return least;
}

uint32_t JobMachine::greatest_posted() const {
  uint32_t greatest = 0;
  for (const Rank& rank : ranks_) greatest = std::max(greatest, rank.posted);
  return greatest;
}

Status JobMachine::claim(uint32_t rank, uint32_t number) {
  if (rank >= ranks_.size()) {
    return error(Code::kInvalidArgument, "local rank {} of a job of {} ranks on this node", rank,
                 ranks_.size());
  }
  if (phase_ != JobPhase::kAttaching || ranks_[rank].claimed) {
    return error(Code::kInvalidArgument,
                 "rank {} of the job has attached already: give each rank a number of its own and "
                 "each run a name of its own in ELIXIR_JOB",
                 number);
  }
  ranks_[rank].number = number;
  ranks_[rank].claimed = true;
  return Status();
}

bool JobMachine::attached(uint32_t rank) {
  ELIXIR_CHECK(ranks_[rank].claimed && !ranks_[rank].attached, "rank {} attaches twice", rank);
  ranks_[rank].attached = true;
  if (phase_ != JobPhase::kAttaching || !all_attached()) return false;
  phase_ = loaders_.empty() ? JobPhase::kTraining : JobPhase::kLoading;
  return true;
}

Status JobMachine::request_load(const Load& load) {
  if (phase_ == JobPhase::kEnding) return Status();
  if (load.rank >= loaders_.size()) {
    return error(Code::kProtocol, "LoadChunk from rank {}, which does not load",
                 ranks_[load.rank].number);
  }
  Loader& loader = loaders_[load.rank];
  ELIXIR_RETURN_IF_ERROR(check_load(loader, load));
  loader.loaded[load.chunk] =
      load.part == shm::LoadPart::kHighHalf ? LoadState::kHigh : LoadState::kLoaded;
  loader.pending[load.slot] = true;
  loads_.push_back(load);
  return Status();
}

Status JobMachine::check_load(const Loader& loader, const Load& load) const {
  // Who asks has seen every step finished; that may not have come here yet. The load waits for it.
  const bool again = phase_ == JobPhase::kTraining && greatest_posted() == committed_;
  if (phase_ != JobPhase::kLoading && !again) {
    return error(Code::kProtocol,
                 "LoadChunk while the job is {}, step {} of {} posted is committed",
                 job_phase_name(phase_), committed_, greatest_posted());
  }
  if (load.chunk >= loader.loaded.size()) {
    return error(Code::kProtocol, "LoadChunk of chunk {} of {}", load.chunk, loader.loaded.size());
  }
  ELIXIR_CHECK(load.slot < loader.pending.size(), "slot {} of a load", load.slot);
  if (loader.pending[load.slot]) {
    return error(Code::kProtocol,
                 "LoadChunk of chunk {} through slot {} before the load before it was taken",
                 load.chunk, load.slot);
  }
  const bool after_high = loader.loaded[load.chunk] == LoadState::kHigh;
  const bool whole = type_ == ComputeType::kFp32 || load.chunk >= chunks_.on_cpu;
  const bool fits = whole ? load.part == shm::LoadPart::kWhole
                          : load.part == shm::LoadPart::kHighHalf ||
                                (load.part == shm::LoadPart::kLowHalf && after_high);
  if (fits) return Status();
  return error(Code::kProtocol, "LoadChunk of chunk {} with part {}, which {} does not expect",
               load.chunk, static_cast<uint32_t>(load.part), compute_type_name(type_));
}

Status JobMachine::request_restore() {
  if (phase_ == JobPhase::kEnding) return Status();
  const bool untouched = std::all_of(loaders_.begin(), loaders_.end(), [](const Loader& loader) {
    return std::count(loader.loaded.begin(), loader.loaded.end(), LoadState::kNothing) ==
           static_cast<std::ptrdiff_t>(loader.loaded.size());
  });
  const bool first = phase_ == JobPhase::kLoading && untouched;
  const bool again = phase_ == JobPhase::kTraining && greatest_posted() == committed_;
  if ((first || again) && loads_.empty() && !restore_pending_) {
    restore_pending_ = true;
    return Status();
  }
  return error(Code::kProtocol,
               "LoadFolder while the job is {} (step {} committed, {} posted), {} loads are queued",
               job_phase_name(phase_), committed_, greatest_posted(), loads_.size());
}

void JobMachine::finish_restore(bool restored) {
  ELIXIR_CHECK(activity_ == Activity::kRestore, "no restore is in flight");
  activity_ = Activity::kNone;
  if (restored) {
    for (Loader& loader : loaders_) {
      std::fill(loader.loaded.begin(), loader.loaded.end(), LoadState::kLoaded);
      std::fill(loader.there.begin(), loader.there.end(), true);
      loader.missing = 0;
    }
    if (phase_ == JobPhase::kLoading) phase_ = JobPhase::kTraining;
  }
  check_invariant();
}

Status JobMachine::note_posted(uint32_t rank, uint32_t posted) {
  Rank& mine = ranks_[rank];
  if (phase_ == JobPhase::kEnding || posted == mine.posted) return Status();
  if (phase_ != JobPhase::kTraining) {
    return error(Code::kProtocol, "step {} posted while the job is {}", posted,
                 job_phase_name(phase_));
  }
  if (posted < mine.posted || posted - committed_ > kMaxStepsAhead) {
    return error(Code::kProtocol, "posted_step went from {} to {} with step {} committed",
                 mine.posted, posted, committed_);
  }
  mine.posted = posted;
  return Status();
}

NextActivity JobMachine::start_next(bool gradients_ready, const Holds& holds) {
  NextActivity next{Activity::kNone, {}, 0};
  if (activity_ != Activity::kNone) return next;
  const bool steps = phase_ == JobPhase::kTraining || finish_posted_;
  const bool loads = phase_ == JobPhase::kLoading || phase_ == JobPhase::kTraining;
  if (loads && restore_pending_ && !holds.loads) {
    next.activity = Activity::kRestore;
    restore_pending_ = false;
  } else if (loads && !loads_.empty() && !holds.loads) {
    next.activity = Activity::kLoad;
    next.load = loads_.front();
  } else if (holds.steps) {
    return next;
  } else if (steps && least_posted() > committed_) {
    next.activity = Activity::kStep;
    next.step = ++committed_;
  } else if (phase_ == JobPhase::kTraining && gradients_ready) {
    next.activity = Activity::kTake;
  }
  activity_ = next.activity;
  check_invariant();
  return next;
}

void JobMachine::refuse_step() {
  ELIXIR_CHECK(activity_ == Activity::kStep, "no step to reject");
  --committed_;
  activity_ = Activity::kNone;
  finish_posted_ = false;
  check_invariant();
}

void JobMachine::finish_activity() {
  ELIXIR_CHECK(activity_ != Activity::kNone && activity_ != Activity::kRestore,
               "nothing was in flight that ends so");
  if (activity_ == Activity::kStep) finished_ = committed_;
  if (activity_ == Activity::kLoad) {
    const Load load = loads_.front();
    loads_.pop_front();
    Loader& loader = loaders_[load.rank];
    loader.pending[load.slot] = false;
    ++loader.taken[load.slot];
    if (load.part != shm::LoadPart::kHighHalf && !loader.there[load.chunk]) {
      loader.there[load.chunk] = true;
      --loader.missing;
    }
    const bool all = std::all_of(loaders_.begin(), loaders_.end(),
                                 [](const Loader& one) { return one.missing == 0; });
    if (all && phase_ == JobPhase::kLoading) phase_ = JobPhase::kTraining;
  }
  activity_ = Activity::kNone;
  check_invariant();
}

const Load& JobMachine::load_in_flight() const {
  ELIXIR_CHECK(activity_ == Activity::kLoad, "no load is in flight");
  return loads_.front();
}

std::optional<Fault> JobMachine::detach(uint32_t rank) {
  ELIXIR_CHECK(!ranks_[rank].detached, "rank {} says goodbye twice", rank);
  ranks_[rank].detached = true;
  if (all_detached()) {
    finish_posted_ = phase_ == JobPhase::kTraining;
    phase_ = JobPhase::kEnding;
    return std::nullopt;
  }
  return waiting_for_detached();
}

std::optional<Fault> JobMachine::waiting_for_detached() const {
  if (phase_ == JobPhase::kEnding) return std::nullopt;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].detached) continue;
    const uint32_t posted = ranks_[rank].posted;
    if (phase_ == JobPhase::kTraining && greatest_posted() <= posted) continue;
    std::string when = fmt::format("while the job was {}", job_phase_name(phase_));
    if (phase_ == JobPhase::kTraining) {
      when =
          fmt::format("after step {}, but another rank posted step {}", posted, greatest_posted());
    }
    Fault fault;
    fault.code = fault.others_code = Code::kPeerLost;
    fault.rank = rank;
    fault.text = fault.others_text =
        fmt::format("rank {} detached {}: let every rank make the same number of steps",
                    ranks_[rank].number, when);
    return fault;
  }
  return std::nullopt;
}

void JobMachine::fail(Fault fault, bool finish_posted) {
  if (phase_ == JobPhase::kEnding) return;
  fault_ = std::move(fault);
  finish_posted_ = finish_posted && phase_ == JobPhase::kTraining;
  phase_ = JobPhase::kEnding;
}

void JobMachine::check_invariant() const {
  // A step is committed while it is in flight; one at a time, and after every rank's post.
  const uint32_t in_flight = activity_ == Activity::kStep ? 1 : 0;
  ELIXIR_CHECK(committed_ == finished_ + in_flight, "step {} is committed, {} finished", committed_,
               finished_);
  ELIXIR_CHECK(committed_ <= least_posted(), "step {} is committed, {} posted by all", committed_,
               least_posted());
  ELIXIR_CHECK(activity_ != Activity::kLoad || !loads_.empty(), "nothing is being loaded");
  const bool began = phase_ == JobPhase::kLoading || phase_ == JobPhase::kTraining;
  ELIXIR_CHECK(!began || all_attached(), "the job is {}, and a rank is missing",
               job_phase_name(phase_));
  ELIXIR_CHECK(!fault_ || phase_ == JobPhase::kEnding, "the job is {} after a fault",
               job_phase_name(phase_));
  for (const Rank& rank : ranks_) {
    ELIXIR_CHECK(rank.claimed || !rank.attached, "a rank is here whose place nobody took");
  }
}

}  // namespace elixir::daemon
