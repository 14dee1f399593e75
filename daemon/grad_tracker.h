#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "daemon/chunk_list.h"
#include "shm/step_rules.h"

namespace elixir::daemon {

// A copy of a rank's GradRecord.
struct Publication {
  uint32_t step = 0, micro_step = 0, revision = 0;
  bool to_sum : 1 = false;     // these gradients are to be added to the sums
  uint32_t discards : 31 = 0;  // how often the rank discarded earlier gradients of the step

  bool operator==(const Publication&) const = default;
};
static_assert(sizeof(Publication) == 16);  // one per rank and chunk

// The work on one chunk in one pass over its slices.
struct ChunkTask {
  uint32_t chunk = 0;
  uint64_t ranks = 0;       // ranks, a bit each, whose gradients sum_up takes
  uint64_t dropped = 0;     // ranks, a bit each, whose gradients were to be summed and will not be
  bool sum_up = false;      // into the FP32 sums over micro-steps
  bool begins_sum = false;  // with sum_up: replaces what they hold
  bool of_sums = false;     // squares and update read the sums, not the ranks' grad slots
  bool squares = false;
  bool update = false;
  bool copy = false;   // with update: into the snapshot, each slice before it changes
  bool early = false;  // update it out of place, into a spare slot, before the verdict
  bool swing = false;  // after the verdict, out of place: gone ranks' shards of a swing chunk
  uint32_t slot = 0;   // the slot of an update out of place
  uint64_t owners = ~uint64_t{0};  // a bit each: ranks of this node whose shards an update changes

  bool out_of_place() const { return early || swing; }
};

// Limits of early updates. `slots`: spare slots now. A chunk takes one, unless it has one from this
// step. `at_once`: chunks per call, so that the post does not wait for a long queue of them.
struct EarlyLimits {
  uint32_t slots = 0, at_once = 0;
};

// Tracks which gradients of the next step are there and which of them were taken, and decides what
// to do with each chunk. It acts at the post. It acts earlier, once all local ranks have published
// the chunk, if updates are immediate, squares are wanted, or a rank asks for the sum. Ranks are
// counted on this node.
//
// Gradients of several micro-steps are added up in FP32, in the order of micro-steps and, within
// one, of ranks. Before a trainer fills a grad slot again, it asks for the sum of the gradients
// there (shm::GradPublication::to_sum). From then on all ranks' gradients of that chunk are summed.
// Memory for sums may have to be made first: nothing is summed before sums_are_there().
//
// A rank may discard its gradients of the step. With the new ones it publishes how often it has
// done so. A chunk's sums have only gradients with the greatest number of discards that a rank has
// published. The first gradients with a greater number begin the chunk's sum again. Gradients with
// fewer discards do not count, because their rank is about to make the same discard. If a rank
// waits for the sum of such gradients, elixird publishes that they are taken.
//
// Ranks whose backward passes use different chunks could wait for one another's gradients forever.
// This is the case when every rank that may still publish waits for a sum, and has published all
// its gradients so far. Then the awaited chunks are summed without the ranks that have not
// published them. The sums do not depend on how fast a rank is, because each rank waits only for
// what others publish, not for when. (It is a Kahn network; G. Kahn, The semantics of a simple
// language for parallel programming, 1974.)
// Note: docs/design/elixir.md, "order of sums".
//
// Publications are foreign data. One counts if its step is the awaited one and its revision differs
// from the one before. Whatever else a rank writes, a publication leads to one task. A task counts
// as done when it is given out, so it must be done before others are started.
//
// No thread, socket, clock or memory of a job. Allocates only at construction.
class GradTracker {
 public:
  // `ranks` at most 64. With rules.sums_all() memory for sums is there from the start. Chunks from
  // `first_swing` on are not updated early.
  GradTracker(uint32_t ranks, uint32_t n_chunks, const shm::StepRules& rules,
              uint32_t first_swing = UINT32_MAX);

  uint32_t ranks() const { return ranks_; }
  uint32_t step() const { return step_; }  // the awaited one

  // kProtocol: an updated chunk is published again; a summed chunk is published again with as many
  // discards and no greater micro-step; or a chunk comes with fewer discards than before.
  Status note(uint32_t rank, uint32_t chunk, const Publication& publication);
  // The last publication that counted.
  const Publication& noted(uint32_t rank, uint32_t chunk) const {
    return noted_[uint64_t{rank} * n_chunks_ + chunk];
  }
  // In the awaited step: how often the rank has discarded gradients, and whether it has published
  // the chunk, or every chunk, since the last discard.
  uint32_t discards(uint32_t rank) const { return discards_[rank]; }
  bool published(uint32_t rank, uint32_t chunk) const {
    const Publication& last = noted(rank, chunk);
    return last.step == step_ && last.discards == discards_[rank];
  }
  bool published_all(uint32_t rank) const { return published_[rank] == n_chunks_; }

  // The rank has posted the awaited step. It publishes no more gradients of it, so others need not
  // wait for this rank.
  void note_posted(uint32_t rank);
  // The rank has said goodbye; `last_step` is the last step that it posted. Later steps will not
  // happen. But a rank that waits for a sum in one must not wait forever, so the sum is made
  // without this rank. The error comes at the waiting rank's own post.
  void note_gone(uint32_t rank, uint32_t last_step);
  // Whether it has said goodbye and will never post the awaited step.
  bool absent(uint32_t rank) const { return (absent_ >> rank & 1) != 0; }
  // Call it once all have posted. kProtocol: gradients of a rank are not in a chunk's sums, because
  // other ranks made discards that it did not make.
  Status check_discards() const;

  // The rank waits for the sum of chunk `awaited` - 1 (0: for none). REQUIRES: `awaited` was read
  // after the rank's publications that are noted.
  void note_awaited(uint32_t rank, uint32_t awaited);
  // The rank is in a call that all ranks make: it publishes nothing before all have made it.
  void note_call(uint32_t rank, bool in_call);
  // Whether every rank that may still publish waits for a sum that has not begun, and that the
  // noted publications do not complete.
  bool all_wait() const;
  // Makes the awaited sums ready. REQUIRES: all_wait(), and all publications have been noted.
  void sum_what_is_awaited();

  // Ranks, a bit each, that others wait for within the step: they have published some of it and may
  // publish more. 0: nobody waits, or only for a rank that has not begun the step, such as one that
  // evaluates.
  uint64_t late_ranks() const;

  // Whether a rank has asked for a sum in the awaited step.
  bool wants_sums() const { return wants_sums_; }
  // Whether a rank has asked for a sum, and there is no memory for sums.
  bool lacks_sums() const { return wants_sums_ && !has_sums_; }
  void sums_are_there();

  // Whether there are chunks to take before the post, or to update early. A chunk can be taken once
  // each rank has published it, or will not publish it.
  bool anything_ready(const EarlyLimits& early = {}) const {
    return !ready_.empty() || (early.at_once > 0 && early_queue_.size() > 0);
  }

  // Each replaces `tasks`, whose capacity is n_chunks. With rules.early, start_ready() also updates
  // chunks early, within the limits: those whose last gradients are there, the latest first.
  void start_ready(std::vector<ChunkTask>* tasks, const EarlyLimits& early = {});
  // At the post, before the verdict: the squares that are still missing.
  void start_squares(std::vector<ChunkTask>* tasks);
  // After the verdict: all chunks that were not updated, in chunk order. `early_counts`: an early
  // update counts as the chunk's update.
  void start_updates(std::vector<ChunkTask>* tasks, bool early_counts = false);

  // Whether the chunk was updated early in the awaited step, from its current gradients.
  bool early(uint32_t chunk) const { return chunks_[chunk].early && chunks_[chunk].fresh == 0; }
  // Its early update does not count: it used other states, hyperparameters or parameters.
  void forget_early(uint32_t chunk) { chunks_[chunk].early = false; }

  // Whether chunks have the awaited step's update before its post: then the weights are of two
  // steps.
  bool partly_updated() const;

  // Ends the awaited step, and awaits the next one. REQUIRES: start_updates() came before.
  void next_step();

  // Checks what holds between any two calls, whatever ranks published. It passes over all chunks,
  // so call it once per step.
  void check_invariant() const;

  // Equal trackers continue equally. A copy is independent.
  bool operator==(const GradTracker&) const = default;

 private:
  struct Chunk {
    uint64_t fresh = 0;       // ranks with gradients that were not taken, a bit each
    uint64_t summed = 0;      // ranks whose noted gradients the sums hold, a bit each
    uint64_t stale = 0;       // ranks whose noted gradients have fewer discards, a bit each
    uint64_t dropped = 0;     // stale ranks that asked for the sum and have not heard of it
    uint32_t discards = 0;    // the most of any rank
    uint32_t micro_step = 0;  // the greatest of the fresh ones
    bool ready = false;       // is in ready_
    bool to_sum = false;      // a rank has asked for it in this step
    bool has_sum = false;     // the sums hold gradients of this step, with `discards` before them
    bool has_squares = false;
    bool updated = false;
    bool early = false;       // updated early, from all gradients but the fresh ones
    bool has_slot = false;    // has a spare slot for that, in this step
    bool queued = false;      // is in early_queue_
    bool incomplete = false;  // is ready without all ranks' gradients
    bool parted = false;  // was incomplete in this step: its micro-steps are not those of all ranks

    bool operator==(const Chunk&) const = default;
  };

  uint64_t all_ranks() const { return ~uint64_t{0} >> (64 - ranks_); }
  void count(uint32_t rank, const Publication& before, const Publication& publication);
  void begin_anew(uint32_t chunk, uint32_t discards);
  void want_sum(uint32_t rank, uint32_t chunk);
  bool sums(const Chunk& state) const { return state.to_sum && has_sums_; }
  bool complete(const Chunk& state) const;
  void queue_if_ready(uint32_t chunk);
  void count_absent();
  uint64_t silent_ranks(const Chunk& state) const;
  bool may_publish(uint32_t rank) const { return (silent() >> rank & 1) == 0; }
  uint64_t silent() const { return posted_ | absent_ | in_call_; }
  bool waits(uint32_t rank) const;
  ChunkTask start(uint32_t chunk, bool squares, bool update);
  void queue_early(uint32_t chunk);
  void unqueue_early(uint32_t chunk);
  void drop_those_without_slots();
  void start_early(std::vector<ChunkTask>* tasks, EarlyLimits limits);

  const uint32_t ranks_, n_chunks_, first_swing_;
  const shm::StepRules rules_;
  uint32_t step_ = 1;
  uint64_t posted_ = 0;  // ranks that posted it, a bit each
  uint64_t absent_ = 0;  // ranks that said goodbye and will never post it
  bool has_sums_;
  bool wants_sums_ = false;
  std::vector<Chunk> chunks_;
  std::vector<Publication> noted_;    // rank by rank (the order of reading), all chunks
  std::vector<uint32_t> discards_;    // by rank: its discards in the awaited step
  std::vector<uint32_t> published_;   // by rank: chunks published in it since its last discard
  std::vector<uint32_t> last_steps_;  // by rank; UINT32_MAX: it has not said goodbye
  std::vector<uint32_t> awaited_;     // by rank: 1 + the chunk whose sum it waits for, 0: none
  uint64_t awaiting_ = 0;             // ranks that wait for a sum, a bit each
  uint64_t in_call_ = 0;              // ranks, a bit each
  std::vector<uint32_t> ready_;
  // Chunks to update early, unless the post or other gradients come first.
  ChunkList early_queue_;
};

}  // namespace elixir::daemon
