#include "daemon/grad_tracker.h"

#include <algorithm>

#include "base/check.h"

namespace elixir::daemon {

GradTracker::GradTracker(const Rules& rules)
    : rules_(rules), chunks_(rules.n_chunks), noted_(uint64_t{rules.n_chunks} * rules.ranks) {
  ELIXIR_CHECK(rules.ranks >= 1 && rules.ranks <= 64, "{} ranks on a node", rules.ranks);
  ready_.reserve(rules.n_chunks);
}

Status GradTracker::note(uint32_t rank, uint32_t chunk, const Publication& publication) {
  ELIXIR_CHECK(rank < rules_.ranks && chunk < rules_.n_chunks, "rank {} of {}, chunk {} of {}",
               rank, rules_.ranks, chunk, rules_.n_chunks);
  Publication& noted = noted_[uint64_t{chunk} * rules_.ranks + rank];
  // The same revision with another step: the rank is about to publish.
  if (publication.step != step_ || publication.revision == noted.revision) return Status();
  Chunk& state = chunks_[chunk];
  if (state.updated) {
    return error(Code::kProtocol,
                 "round {} of step {} of chunk {} was published after its update: {} rounds a step "
                 "were declared for immediate updates; publish as many, or declare more",
                 publication.round, step_, chunk, rules_.accumulate);
  }
  if (rules_.sums_rounds()) ELIXIR_RETURN_IF_ERROR(check_rounds(rank, chunk, publication));
  noted = publication;
  if (state.fresh == 0) {
    state.round = 0;
    state.restarts = false;
  }
  state.fresh |= uint64_t{1} << rank;
  state.round = std::max(state.round, publication.round);
  state.restarts = state.restarts || publication.round <= 1 || !state.taken;
  queue_if_ready(chunk);
  return Status();
}

void GradTracker::queue_if_ready(uint32_t chunk) {
  Chunk& state = chunks_[chunk];
  const bool complete = state.fresh != 0 && (state.fresh | posted_) == all_ranks();
  if (!rules_.early() || !complete || state.ready) return;
  // What is there of ranks that still differ in what they keep is for check_discards.
  if (state.fresh != all_ranks() && state.taken && state.restarts) return;
  state.ready = true;
  ready_.push_back(chunk);
}

void GradTracker::note_posted(uint32_t rank) {
  posted_ |= uint64_t{1} << rank;
  if (!rules_.sums_rounds() || posted_ == all_ranks()) return;
  for (uint32_t chunk = 0; chunk < rules_.n_chunks; ++chunk) queue_if_ready(chunk);
}

Status GradTracker::check_discards() const {
  for (uint32_t chunk = 0; rules_.sums_rounds() && chunk < rules_.n_chunks; ++chunk) {
    const Chunk& state = chunks_[chunk];
    if (!state.taken || !state.restarts || state.fresh == 0 || state.fresh == all_ranks()) continue;
    return error(
        Code::kProtocol,
        "some ranks began step {} of chunk {} anew, others keep what they had brought: let "
        "every rank run and discard the same backward passes",
        step_, chunk);
  }
  return Status();
}

// What has been taken already is either kept by all ranks or by none.
Status GradTracker::check_rounds(uint32_t rank, uint32_t chunk,
                                 const Publication& publication) const {
  const Chunk& state = chunks_[chunk];
  if (!state.taken || state.fresh == 0 || state.restarts == (publication.round <= 1)) {
    return Status();
  }
  return error(Code::kProtocol,
               "rank {} published round {} of step {} of chunk {}, another rank {}: let every rank "
               "run and discard the same backward passes",
               rank, publication.round, step_, chunk,
               state.restarts ? "began with round 1 again" : fmt::format("round {}", state.round));
}

ChunkTask GradTracker::start(uint32_t chunk, bool squares, bool update) {
  Chunk& state = chunks_[chunk];
  ChunkTask task;
  task.chunk = chunk;
  task.ranks = state.fresh;
  task.sum_up = rules_.sums_rounds() && state.fresh != 0;
  task.first_round = task.sum_up && state.restarts;
  task.squares = squares;
  task.update = update;
  // Squares of the gradients before are no good any more.
  if (state.fresh != 0) state.has_squares = false;
  state.has_squares = state.has_squares || squares;
  state.taken = state.taken || state.fresh != 0;
  state.fresh = 0;
  state.updated = state.updated || update;
  return task;
}

void GradTracker::start_ready(std::vector<ChunkTask>* tasks) {
  tasks->clear();
  for (const uint32_t chunk : ready_) {
    const bool last_round = !rules_.sums_rounds() || chunks_[chunk].round >= rules_.accumulate;
    tasks->push_back(start(chunk, rules_.norms && last_round, rules_.immediate && last_round));
    chunks_[chunk].ready = false;
  }
  ready_.clear();
}

void GradTracker::start_squares(std::vector<ChunkTask>* tasks) {
  tasks->clear();
  for (uint32_t chunk = 0; chunk < rules_.n_chunks; ++chunk) {
    const Chunk& state = chunks_[chunk];
    if (state.has_squares && state.fresh == 0) continue;
    tasks->push_back(start(chunk, /*squares=*/true, /*update=*/false));
  }
}

void GradTracker::start_updates(std::vector<ChunkTask>* tasks) {
  tasks->clear();
  for (uint32_t chunk = 0; chunk < rules_.n_chunks; ++chunk) {
    if (chunks_[chunk].updated) continue;
    tasks->push_back(start(chunk, /*squares=*/false, /*update=*/true));
  }
}

bool GradTracker::partly_updated() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](const Chunk& chunk) { return chunk.updated; });
}

void GradTracker::next_step() {
  check_invariant();
  for (const Chunk& chunk : chunks_) {
    ELIXIR_CHECK(chunk.updated, "step {} left a chunk without its update", step_);
  }
  ++step_;
  posted_ = 0;
  std::fill(chunks_.begin(), chunks_.end(), Chunk());
  ready_.clear();
}

void GradTracker::check_invariant() const {
  ELIXIR_CHECK((posted_ & ~all_ranks()) == 0, "posted by ranks that there are not: {:#x}", posted_);
  ELIXIR_CHECK(rules_.early() || ready_.empty(), "{} chunks to take before the post",
               ready_.size());
  size_t n_ready = 0;
  for (const Chunk& chunk : chunks_) {
    n_ready += chunk.ready ? 1 : 0;
    ELIXIR_CHECK((chunk.fresh & ~all_ranks()) == 0, "gradients of ranks that there are not: {:#x}",
                 chunk.fresh);
    ELIXIR_CHECK(!chunk.updated || chunk.fresh == 0, "gradients came after the update");
  }
  ELIXIR_CHECK(n_ready == ready_.size(), "{} chunks are ready, {} in the queue", n_ready,
               ready_.size());
}

}  // namespace elixir::daemon
