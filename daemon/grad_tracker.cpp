#include "daemon/grad_tracker.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace elixir::daemon {

GradTracker::GradTracker(uint32_t ranks, uint32_t n_chunks, const shm::StepRules& rules,
                         uint32_t first_swing)
    : ranks_(ranks),
      n_chunks_(n_chunks),
      first_swing_(first_swing),
      rules_(rules),
      has_sums_(rules.sums_all()),
      chunks_(n_chunks),
      noted_(uint64_t{n_chunks} * ranks),
      discards_(ranks, 0),
      published_(ranks, 0),
      last_steps_(ranks, UINT32_MAX),
      awaited_(ranks, 0),
      early_queue_(n_chunks) {
  ELIXIR_CHECK(ranks >= 1 && ranks <= 64, "{} ranks on a node", ranks);
  ready_.reserve(n_chunks);
}

Status GradTracker::note(uint32_t rank, uint32_t chunk, const Publication& publication) {
  ELIXIR_CHECK(rank < ranks_ && chunk < n_chunks_, "rank {} of {}, chunk {} of {}", rank, ranks_,
               chunk, n_chunks_);
  if (publication.step != step_) return Status();
  Publication& noted = noted_[uint64_t{rank} * n_chunks_ + chunk];
  Chunk& state = chunks_[chunk];
  if (publication.revision == noted.revision) {
    // With another step: the rank is about to publish.
    if (noted.step != step_ || !publication.to_sum || noted.to_sum) return Status();
    noted.to_sum = true;
    if (state.updated) return Status();
    want_sum(rank, chunk);
    queue_if_ready(chunk);
    return Status();
  }
  if (state.updated) {
    return error(Code::kProtocol,
                 "micro-step {} of step {} of chunk {} was published after its update: {} backward "
                 "passes a step were declared for immediate updates; run as many, or declare more",
                 publication.micro_step, step_, chunk, rules_.accumulate);
  }
  if (noted.step == step_ && publication.discards < noted.discards) {
    return error(Code::kProtocol, "step {} of chunk {} was published after {} discards, then {}",
                 step_, chunk, uint32_t{noted.discards}, uint32_t{publication.discards});
  }
  const uint64_t bit = uint64_t{1} << rank;
  if ((state.summed & bit) != 0 && publication.discards == noted.discards &&
      publication.micro_step <= noted.micro_step) {
    return error(Code::kProtocol,
                 "micro-step {} of step {} of chunk {} was published after micro-step {} had been "
                 "summed, and nothing was discarded",
                 publication.micro_step, step_, chunk, noted.micro_step);
  }
  count(rank, noted, publication);
  // Word by word, as it was read: a load of several words would wait for the stores of each.
  noted.step = publication.step;
  noted.micro_step = publication.micro_step;
  noted.revision = publication.revision;
  noted.to_sum = publication.to_sum;
  noted.discards = publication.discards;
  if (publication.discards > state.discards) begin_anew(chunk, publication.discards);
  state.summed &= ~bit;
  state.dropped &= ~bit;
  if (publication.discards < state.discards) {
    state.stale |= bit;
  } else {
    state.stale &= ~bit;
    if (state.fresh == 0) state.micro_step = 0;
    state.fresh |= bit;
    state.micro_step = std::max(state.micro_step, publication.micro_step);
    if (state.queued) unqueue_early(chunk);  // until it is complete again
  }
  if (publication.to_sum) want_sum(rank, chunk);
  queue_if_ready(chunk);
  return Status();
}

// Of a rank that drops gradients every chunk counts once more.
void GradTracker::count(uint32_t rank, const Publication& before, const Publication& publication) {
  if (publication.discards > discards_[rank]) {
    discards_[rank] = publication.discards;
    published_[rank] = 0;
  }
  const bool counted = before.step == step_ && before.discards == discards_[rank];
  if (!counted && publication.discards == discards_[rank]) ++published_[rank];
}

// A rank has dropped gradients of the chunk: what others have brought of it they will drop, too.
void GradTracker::begin_anew(uint32_t chunk, uint32_t discards) {
  Chunk& state = chunks_[chunk];
  state.discards = discards;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const uint64_t bit = uint64_t{1} << rank;
    const Publication& last = noted(rank, chunk);
    if (last.step != step_ || last.discards >= discards) continue;
    state.stale |= bit;
    if (last.to_sum) state.dropped |= state.fresh & bit;
  }
  state.fresh = state.summed = 0;
  state.has_sum = state.incomplete = state.parted = false;
}

// From here on the chunk's gradients are summed, what every rank has published before among them:
// it may have been taken for its squares alone.
void GradTracker::want_sum(uint32_t rank, uint32_t chunk) {
  Chunk& state = chunks_[chunk];
  wants_sums_ = true;
  state.dropped |= state.stale & uint64_t{1} << rank;
  if (std::exchange(state.to_sum, true)) return;
  for (uint32_t other = 0; other < ranks_; ++other) {
    const Publication& last = noted(other, chunk);
    const bool counts = last.step == step_ && last.discards == state.discards;
    if (counts) state.fresh |= uint64_t{1} << other;
  }
  if (state.fresh != 0 && state.queued) unqueue_early(chunk);
}

void GradTracker::sums_are_there() {
  has_sums_ = true;
  for (uint32_t chunk = 0; chunk < n_chunks_; ++chunk) queue_if_ready(chunk);
}

// All gradients that can be taken together are there, and are wanted before the post.
bool GradTracker::complete(const Chunk& state) const {
  // Nothing may be lost of what is to be summed.
  const bool early = rules_.rings_all() || sums(state);
  if (!early || (state.to_sum && !has_sums_)) return false;
  if (state.fresh == 0) return false;
  return state.incomplete || (state.fresh | silent_ranks(state)) == all_ranks();
}

void GradTracker::queue_if_ready(uint32_t chunk) {
  Chunk& state = chunks_[chunk];
  if (state.ready || (!complete(state) && state.dropped == 0)) return;
  state.ready = true;
  ready_.push_back(chunk);
}

void GradTracker::note_posted(uint32_t rank) {
  ELIXIR_CHECK(rank < ranks_, "rank {} of {}", rank, ranks_);
  posted_ |= uint64_t{1} << rank;
  if (!wants_sums_ || posted_ == all_ranks()) return;
  for (uint32_t chunk = 0; chunk < n_chunks_; ++chunk) {
    if (chunks_[chunk].to_sum) queue_if_ready(chunk);
  }
}

void GradTracker::note_gone(uint32_t rank, uint32_t last_step) {
  ELIXIR_CHECK(rank < ranks_, "rank {} of {}", rank, ranks_);
  last_steps_[rank] = last_step;
  count_absent();
  for (uint32_t chunk = 0; wants_sums_ && chunk < n_chunks_; ++chunk) {
    if (chunks_[chunk].to_sum) queue_if_ready(chunk);
  }
}

void GradTracker::note_awaited(uint32_t rank, uint32_t awaited) {
  ELIXIR_CHECK(rank < ranks_ && awaited <= n_chunks_, "rank {} of {} awaits chunk {} of {}", rank,
               ranks_, awaited, n_chunks_);
  const uint64_t bit = uint64_t{1} << rank;
  awaited_[rank] = awaited;
  awaiting_ = awaited == 0 ? awaiting_ & ~bit : awaiting_ | bit;
}

// Not once its gradients were taken: what it said before is old then.
bool GradTracker::waits(uint32_t rank) const {
  if (awaited_[rank] == 0) return false;
  const Chunk& state = chunks_[awaited_[rank] - 1];
  return (state.fresh >> rank & 1) != 0 && sums(state) && !state.ready;
}

void GradTracker::note_call(uint32_t rank, bool in_call) {
  ELIXIR_CHECK(rank < ranks_, "rank {} of {}", rank, ranks_);
  const uint64_t bit = uint64_t{1} << rank;
  in_call_ = in_call ? in_call_ | bit : in_call_ & ~bit;
}

uint64_t GradTracker::late_ranks() const {
  uint64_t late = 0;
  bool awaited = false;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!may_publish(rank)) continue;
    const bool begun = published_[rank] > 0 || discards_[rank] > 0;
    if (waits(rank)) {
      awaited = true;
    } else if (begun) {
      late |= uint64_t{1} << rank;
    } else {
      return 0;
    }
  }
  return awaited ? late : 0;
}

bool GradTracker::all_wait() const {
  const uint64_t others = silent();
  if (others == all_ranks() || (awaiting_ | others) != all_ranks()) return false;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (may_publish(rank) && !waits(rank)) return false;
  }
  return true;
}

void GradTracker::sum_what_is_awaited() {
  ELIXIR_CHECK(all_wait(), "a rank may publish what others wait for");
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!may_publish(rank)) continue;
    Chunk& state = chunks_[awaited_[rank] - 1];
    state.incomplete = state.parted = true;
    queue_if_ready(awaited_[rank] - 1);
  }
}

void GradTracker::count_absent() {
  absent_ = 0;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (last_steps_[rank] < step_) absent_ |= uint64_t{1} << rank;
  }
}

// Those that will not publish the chunk. No update is made without a rank that never posts, or
// whose gradients do not count: what is wrong with these is told at the post.
uint64_t GradTracker::silent_ranks(const Chunk& state) const {
  if (!sums(state)) return posted_;
  const bool updates = rules_.immediate != 0 && state.micro_step >= rules_.accumulate;
  return updates ? posted_ & ~state.stale : posted_ | absent_;
}

// Without sums every slot is read as it is at the post, whatever its rank dropped before.
Status GradTracker::check_discards() const {
  for (uint32_t chunk = 0; chunk < n_chunks_; ++chunk) {
    const Chunk& state = chunks_[chunk];
    if (!state.to_sum || state.stale == 0) continue;
    const auto rank = static_cast<uint32_t>(std::countr_zero(state.stale));
    return error(Code::kProtocol,
                 "in step {}, one rank has discarded its gradients {} times and another one {} "
                 "times, and chunk {} has sums of several backward passes: all ranks must run and "
                 "discard the same backward passes",
                 step_, uint32_t{noted(rank, chunk).discards}, state.discards, chunk);
  }
  return Status();
}

ChunkTask GradTracker::start(uint32_t chunk, bool squares, bool update) {
  Chunk& state = chunks_[chunk];
  ChunkTask task;
  task.chunk = chunk;
  task.ranks = state.fresh;
  task.sum_up = sums(state) && state.fresh != 0;
  task.begins_sum = task.sum_up && !state.has_sum;
  task.squares = squares;
  task.update = update;
  // Squares of the gradients before are no good any more, nor an update with them.
  if (state.fresh != 0) state.has_squares = state.early = false;
  state.has_squares = state.has_squares || squares;
  if (task.sum_up) {
    state.summed = task.begins_sum ? state.fresh : state.summed | state.fresh;
    state.has_sum = true;
  }
  task.of_sums = state.has_sum;
  state.fresh = 0;
  state.incomplete = false;
  state.updated = state.updated || update;
  return task;
}

void GradTracker::start_ready(std::vector<ChunkTask>* tasks, const EarlyLimits& early) {
  tasks->clear();
  for (const uint32_t chunk : ready_) {
    Chunk& state = chunks_[chunk];
    ChunkTask task;
    task.chunk = chunk;
    // A rank may have dropped its part since the chunk was ready.
    if (complete(state)) {
      // How often a rank will still publish it does not follow from how often another one has.
      const bool last = state.micro_step >= rules_.accumulate && !state.parted;
      task = start(chunk, rules_.norms != 0 && last, rules_.immediate != 0 && last);
      // Of passes that nobody declared any may be the last.
      const bool is_early =
          rules_.early != 0 && chunk < first_swing_ && last && (!task.sum_up || rules_.sums_all());
      if (is_early) queue_early(chunk);
    }
    task.dropped = std::exchange(state.dropped, 0);
    tasks->push_back(task);
    state.ready = false;
  }
  ready_.clear();
  start_early(tasks, early);
}

void GradTracker::start_squares(std::vector<ChunkTask>* tasks) {
  tasks->clear();
  for (uint32_t chunk = 0; chunk < n_chunks_; ++chunk) {
    const Chunk& state = chunks_[chunk];
    if (state.has_squares && state.fresh == 0) continue;
    tasks->push_back(start(chunk, /*squares=*/true, /*update=*/false));
  }
}

void GradTracker::start_updates(std::vector<ChunkTask>* tasks, bool early_counts) {
  tasks->clear();
  for (uint32_t chunk = 0; chunk < n_chunks_; ++chunk) {
    if (early_counts && early(chunk)) chunks_[chunk].updated = true;
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
  count_absent();
  std::fill(discards_.begin(), discards_.end(), 0);
  std::fill(published_.begin(), published_.end(), 0);
  std::fill(chunks_.begin(), chunks_.end(), Chunk());
  std::fill(awaited_.begin(), awaited_.end(), 0);
  awaiting_ = 0;
  ready_.clear();
  if (early_queue_.size() > 0) early_queue_.clear();
  wants_sums_ = false;
}

void GradTracker::check_invariant() const {
  ELIXIR_CHECK((posted_ & ~all_ranks()) == 0, "posted by ranks that there are not: {:#x}", posted_);
  size_t n_ready = 0, n_queued = 0;
  for (const Chunk& chunk : chunks_) {
    n_ready += chunk.ready ? 1 : 0;
    n_queued += chunk.queued ? 1 : 0;
    ELIXIR_CHECK(!chunk.queued || chunk.fresh == 0, "an early update of fresh gradients is queued");
    ELIXIR_CHECK(!chunk.early || chunk.has_slot, "a chunk was updated early, and into no slot");
    ELIXIR_CHECK((chunk.fresh & ~all_ranks()) == 0, "gradients of ranks that there are not: {:#x}",
                 chunk.fresh);
    ELIXIR_CHECK(!chunk.updated || chunk.fresh == 0, "gradients came after the update");
    ELIXIR_CHECK((chunk.summed & chunk.fresh) == 0, "gradients of ranks {:#x} are summed twice",
                 chunk.summed & chunk.fresh);
    ELIXIR_CHECK(
        (chunk.stale & (chunk.fresh | chunk.summed)) == 0 && (chunk.dropped & ~chunk.stale) == 0,
        "gradients of ranks {:#x} count, and have been discarded",
        chunk.stale & (chunk.fresh | chunk.summed));
    ELIXIR_CHECK(has_sums_ || !chunk.has_sum, "gradients are summed in memory that is not there");
    ELIXIR_CHECK(chunk.has_sum || chunk.summed == 0, "sums of nothing");
    ELIXIR_CHECK(!chunk.incomplete || (chunk.ready && chunk.parted),
                 "gradients are to be summed without others, and are not ready");
  }
  ELIXIR_CHECK(n_ready == ready_.size(), "{} chunks are ready, {} in the queue", n_ready,
               ready_.size());
  ELIXIR_CHECK(n_queued == early_queue_.size(),
               "{} chunks are to be updated early, {} in the queue", n_queued, early_queue_.size());
}

}  // namespace elixir::daemon
