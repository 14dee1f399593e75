#include "daemon/job_machine.h"

#include <algorithm>
#include <utility>

namespace elixir::daemon {

const char* job_phase_name(JobPhase phase) {
  switch (phase) {
    case JobPhase::kAttaching:
      return "attaching";
    case JobPhase::kLoading:
      return "loading";
    case JobPhase::kTraining:
      return "training";
    case JobPhase::kEnding:
      return "ending";
  }
  return "?";
}

JobMachine::JobMachine(ComputeType type, uint32_t ranks, uint32_t n_chunks)
    : type_(type),
      ranks_(ranks),
      loaded_(n_chunks, LoadState::kNothing),
      load_pending_(n_chunks, false) {}

bool JobMachine::all_detached() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.detached; });
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

Status JobMachine::claim(uint32_t rank) {
  if (rank >= ranks_.size()) {
    return error(Code::kInvalidArgument, "rank {} of a job of {} ranks", rank, ranks_.size());
  }
  if (phase_ != JobPhase::kAttaching || ranks_[rank].claimed) {
    return error(Code::kInvalidArgument,
                 "rank {} of the job has attached already: give each rank a number of its own and "
                 "each run a name of its own in ELIXIR_JOB",
                 rank);
  }
  ranks_[rank].claimed = true;
  return Status();
}

bool JobMachine::attached(uint32_t rank) {
  ELIXIR_CHECK(ranks_[rank].claimed && !ranks_[rank].attached, "rank {} attaches twice", rank);
  ranks_[rank].attached = true;
  const bool all =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& other) { return other.attached; });
  if (phase_ != JobPhase::kAttaching || !all) return false;
  phase_ = JobPhase::kLoading;
  return true;
}

Status JobMachine::request_load(uint32_t rank, const Load& load) {
  if (phase_ == JobPhase::kEnding) return Status();
  if (rank != 0) return error(Code::kProtocol, "LoadChunk from rank {}; rank 0 loads", rank);
  if (phase_ != JobPhase::kLoading || last_load_seen_) {
    return error(Code::kProtocol, "LoadChunk while the job is {}{}", job_phase_name(phase_),
                 last_load_seen_ ? ", after the last one" : "");
  }
  if (load.chunk >= loaded_.size()) {
    return error(Code::kProtocol, "LoadChunk of chunk {} of {}", load.chunk, loaded_.size());
  }
  if (load_pending_[load.chunk]) {
    return error(Code::kProtocol, "LoadChunk of chunk {} before the Ack of the one before",
                 load.chunk);
  }
  LoadState& state = loaded_[load.chunk];
  const bool whole = type_ == ComputeType::kFp32;
  const bool fits = whole ? load.part == shm::LoadPart::kWhole
                          : load.part == shm::LoadPart::kHighHalf ||
                                (load.part == shm::LoadPart::kLowHalf && state == LoadState::kHigh);
  if (!fits) {
    return error(Code::kProtocol, "LoadChunk of chunk {} with part {}, which {} does not expect",
                 load.chunk, static_cast<uint32_t>(load.part), compute_type_name(type_));
  }
  state = load.part == shm::LoadPart::kHighHalf ? LoadState::kHigh : LoadState::kLoaded;
  if (load.last && std::count(loaded_.begin(), loaded_.end(), LoadState::kHigh) > 0) {
    return error(Code::kProtocol, "the last LoadChunk while a chunk has only its high halves");
  }
  last_load_seen_ = load.last;
  load_pending_[load.chunk] = true;
  loads_.push_back(load);
  return Status();
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

Status JobMachine::request_checksum(uint32_t rank, uint64_t request_id) {
  if (phase_ == JobPhase::kEnding) return Status();
  if (phase_ != JobPhase::kTraining) {
    return error(Code::kProtocol, "Checksum while the job is {}", job_phase_name(phase_));
  }
  // One request a rank: a rank that asks again has given up the request before.
  std::erase_if(checksums_, [&](const ChecksumRequest& other) { return other.rank == rank; });
  checksums_.push_back({rank, request_id});
  return Status();
}

NextActivity JobMachine::start_next() {
  NextActivity next{Activity::kNone, {}, 0};
  if (activity_ != Activity::kNone) return next;
  const bool steps = phase_ == JobPhase::kTraining || finish_posted_;
  if (phase_ == JobPhase::kLoading && !loads_.empty()) {
    next.activity = Activity::kLoad;
    next.load = loads_.front();
  } else if (steps && least_posted() > committed_) {
    next.activity = Activity::kStep;
    next.step = ++committed_;
  } else if (phase_ == JobPhase::kTraining && !checksums_.empty() &&
             greatest_posted() == finished_) {
    next.activity = Activity::kChecksum;
  }
  activity_ = next.activity;
  return next;
}

void JobMachine::refuse_step() {
  ELIXIR_CHECK(activity_ == Activity::kStep, "no step to refuse");
  --committed_;
  activity_ = Activity::kNone;
  finish_posted_ = false;
}

void JobMachine::finish_activity() {
  ELIXIR_CHECK(activity_ != Activity::kNone, "nothing was in flight");
  if (activity_ == Activity::kStep) finished_ = committed_;
  if (activity_ == Activity::kLoad) {
    const Load load = loads_.front();
    loads_.pop_front();
    load_pending_[load.chunk] = false;
    if (load.last && phase_ == JobPhase::kLoading) phase_ = JobPhase::kTraining;
  }
  activity_ = Activity::kNone;
}

std::vector<ChecksumRequest> JobMachine::take_checksum_requests() {
  return std::exchange(checksums_, {});
}

std::optional<Fault> JobMachine::detach(uint32_t rank) {
  ranks_[rank].detached = true;
  std::erase_if(checksums_, [&](const ChecksumRequest& other) { return other.rank == rank; });
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
    const std::string when = phase_ == JobPhase::kTraining
                                 ? fmt::format("after step {}, but another rank posted step {}",
                                               posted, greatest_posted())
                                 : fmt::format("while the job was {}", job_phase_name(phase_));
    Fault fault;
    fault.code = fault.others_code = Code::kPeerLost;
    fault.rank = rank;
    fault.text = fault.others_text = fmt::format(
        "rank {} detached {}: let every rank make the same number of steps", rank, when);
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

}  // namespace elixir::daemon
