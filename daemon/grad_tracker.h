#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "daemon/chunk_list.h"
#include "shm/step_rules.h"

namespace elixir::daemon {

// A copy of what a rank's GradRecord says of its gradients.
struct Publication {
  uint32_t step = 0, micro_step = 0, revision = 0;
  bool to_sum : 1 = false;     // these gradients are to be added to the sums
  uint32_t discards : 31 = 0;  // so often the rank has dropped gradients of the step before these

  bool operator==(const Publication&) const = default;
};
static_assert(sizeof(Publication) == 16);  // there is one a rank and chunk

// What to do with one chunk, in one pass over its slices.
struct ChunkTask {
  uint32_t chunk = 0;
  uint64_t ranks = 0;       // a bit each: whose gradients sum_up takes
  uint64_t dropped = 0;     // a bit each: whose gradients were to be summed, and will not be
  bool sum_up = false;      // into the FP32 sums over micro-steps
  bool begins_sum = false;  // with sum_up: replaces what they hold
  bool of_sums = false;     // squares and update read the sums, else what the ranks' slots hold
  bool squares = false;
  bool update = false;
  bool copy = false;   // with update: into the snapshot, each slice before it changes
  bool early = false;  // update it out of place, into a spare slot, before the verdict
  bool swing =
      false;          // of a swing chunk: out of place, after it, the shards of ranks that are gone
  uint32_t slot = 0;  // which one
  uint64_t owners = ~uint64_t{0};  // a bit each: ranks of this node whose shards an update changes

  bool out_of_place() const { return early || swing; }
};

// What early updates may be made. slots: that are spare now, one for each chunk that had none in
// this step; at_once: chunks in one go, so that the post does not wait for a long queue of them.
struct EarlyLimits {
  uint32_t slots = 0, at_once = 0;
};

// Which gradients of the step that comes next are there, which of them were taken, and what to do
// with each chunk: at the post, or as soon as all local ranks have published it, where updates are
// immediate, squares are wanted, or a rank asks for the sum. Ranks are counted on this node.
//
// Gradients of several micro-steps are added up in FP32, in the order of micro-steps and, within
// one, of ranks. A trainer asks for the sum of what a slot holds before it fills the slot again
// (shm::GradPublication::to_sum); then everybody's gradients of that chunk are summed from there
// on. Memory for sums may have to be made first: nothing is summed before sums_are_there().
//
// A rank that drops its gradients of the step and makes others says with these how often it has
// done so. Sums of a chunk are of the gradients with the most discards that a rank has said: with
// the first of them the chunk begins anew, and those with fewer do not count, for their rank is
// taken to be on its way to the same discard. Whoever waits for their sum is told that they are
// taken.
//
// Ranks whose backward passes use different chunks could wait for one another's gradients for ever.
// Once each that may still publish waits for a sum, and has published all that it has made, the
// awaited chunks are summed without those that have not published them. What has come until then,
// and so every sum, is the same however fast a rank is: each waits for what the others publish
// alone, not for when (a Kahn network; G. Kahn, The semantics of a simple language for parallel
// programming, 1974).
//
// Publications are foreign. One counts when its step is the awaited one and its revision differs
// from the one before: whatever else a rank writes, a task is given out once for it. A task counts
// as done when it is given out; no other is started before it is.
//
// No thread, socket, clock or memory of a job. Allocates at construction alone.
class GradTracker {
 public:
  // `ranks` at most 64. With rules.sums_all() memory for sums is there from the start. Chunks from
  // `first_swing` on are not updated early.
  GradTracker(uint32_t ranks, uint32_t n_chunks, const shm::StepRules& rules,
              uint32_t first_swing = UINT32_MAX);

  uint32_t ranks() const { return ranks_; }
  uint32_t step() const { return step_; }  // the awaited one

  // kProtocol: a chunk that was updated is published again, or one that was summed with a
  // micro-step no greater and as many discards, or one with fewer discards than before.
  Status note(uint32_t rank, uint32_t chunk, const Publication& publication);
  // The last one that counted.
  const Publication& noted(uint32_t rank, uint32_t chunk) const {
    return noted_[uint64_t{rank} * n_chunks_ + chunk];
  }
  // In the awaited step: how often the rank has dropped gradients, whether it has published the
  // chunk, or every chunk, since it did so last.
  uint32_t discards(uint32_t rank) const { return discards_[rank]; }
  bool published(uint32_t rank, uint32_t chunk) const {
    const Publication& last = noted(rank, chunk);
    return last.step == step_ && last.discards == discards_[rank];
  }
  bool published_all(uint32_t rank) const { return published_[rank] == n_chunks_; }

  // The rank has posted the awaited step: it publishes no more of it, and others that do so need
  // not wait for it.
  void note_posted(uint32_t rank);
  // The rank has said goodbye, with `last_step` as the last one that it posted. A step after it
  // will not be, but who waits there for a sum does not wait for ever: its own post says what is
  // wrong.
  void note_gone(uint32_t rank, uint32_t last_step);
  // It has, and will never post the awaited step.
  bool absent(uint32_t rank) const { return (absent_ >> rank & 1) != 0; }
  // Once all have posted: kProtocol when a chunk's sums lack what a rank brought before discards
  // that only others made.
  Status check_discards() const;

  // The rank waits for the sum of chunk `awaited` - 1, or, 0, for none, as it said after all
  // publications that were noted.
  void note_awaited(uint32_t rank, uint32_t awaited);
  // The rank is in a call that all ranks make: it publishes nothing before they have.
  void note_call(uint32_t rank, bool in_call);
  // Each rank that may publish before the others go on waits for a sum that has not begun, and that
  // nothing which is noted completes.
  bool all_wait() const;
  // These sums are ready. REQUIRES: all_wait(), and all publications have been noted.
  void sum_what_is_awaited();

  // Ranks, a bit each, that others wait for in the midst of the step: they have published some of
  // it and may publish more. 0: nobody waits, or for one that has not begun it, as one does that
  // evaluates.
  uint64_t late_ranks() const;

  // A rank has asked for a sum in the awaited step.
  bool wants_sums() const { return wants_sums_; }
  // And there is no memory for it.
  bool lacks_sums() const { return wants_sums_ && !has_sums_; }
  void sums_are_there();

  // Chunks to take before the post: all ranks have published them since, or will not. Or chunks to
  // update early.
  bool anything_ready(const EarlyLimits& early = {}) const {
    return !ready_.empty() || (early.at_once > 0 && early_queue_.size() > 0);
  }

  // Each replaces `tasks`, whose capacity is n_chunks.
  // With rules.early, those whose last gradients are in are then updated early, the latest first,
  // as far as the limits go.
  void start_ready(std::vector<ChunkTask>* tasks, const EarlyLimits& early = {});
  // At the post, before the verdict: what the squares of all chunks lack.
  void start_squares(std::vector<ChunkTask>* tasks);
  // After the verdict: all chunks that were not updated, in their order. `early_counts`: nor early.
  void start_updates(std::vector<ChunkTask>* tasks, bool early_counts = false);

  // The chunk was updated early in the awaited step, from the gradients that are its own still.
  bool early(uint32_t chunk) const { return chunks_[chunk].early && chunks_[chunk].fresh == 0; }
  // It does not count: it was of other states, hyperparameters or parameters.
  void forget_early(uint32_t chunk) { chunks_[chunk].early = false; }

  // Chunks have the awaited step's update before it is posted: the weights are of two steps.
  bool partly_updated() const;

  // Of the awaited step everything is known: the one after it is awaited from here on.
  // REQUIRES: start_updates() came before.
  void next_step();

  // What holds between any two calls, whatever ranks published. A pass over all chunks: once a
  // step.
  void check_invariant() const;

  // Trackers that are equal go on equally. A copy is a tracker of its own.
  bool operator==(const GradTracker&) const = default;

 private:
  struct Chunk {
    uint64_t fresh = 0;       // ranks with gradients that were not taken, a bit each
    uint64_t summed = 0;      // ranks whose noted gradients the sums hold, a bit each
    uint64_t stale = 0;       // ranks whose noted gradients have fewer discards, a bit each
    uint64_t dropped = 0;     // of these, who asked for the sum and was not told yet
    uint32_t discards = 0;    // the most that a rank has said
    uint32_t micro_step = 0;  // the greatest of the fresh ones
    bool ready = false;       // is in ready_
    bool to_sum = false;      // a rank has asked for it in this step
    bool has_sum = false;     // the sums hold gradients of this step, with `discards` before them
    bool has_squares = false;
    bool updated = false;
    bool early = false;       // updated so, from all gradients but the fresh ones
    bool has_slot = false;    // for that, in this step
    bool queued = false;      // is in early_queue_
    bool incomplete = false;  // is ready without all ranks' gradients
    bool parted = false;      // was, in this step: its micro-steps are not those of all ranks

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
  uint64_t absent_ = 0;  // that said goodbye and will never post it
  bool has_sums_;
  bool wants_sums_ = false;
  std::vector<Chunk> chunks_;
  std::vector<Publication> noted_;    // rank by rank, as they are looked at, all chunks
  std::vector<uint32_t> discards_;    // by rank: the most that it has said in the awaited step
  std::vector<uint32_t> published_;   // by rank: chunks noted in it with as many discards
  std::vector<uint32_t> last_steps_;  // by rank; UINT32_MAX: it has not said goodbye
  std::vector<uint32_t> awaited_;     // by rank: 1 + the chunk whose sum it waits for, 0: none
  uint64_t awaiting_ = 0;             // ranks that have one there, a bit each
  uint64_t in_call_ = 0;              // ranks, a bit each
  std::vector<uint32_t> ready_;
  // To be updated early, unless the post or other gradients come before.
  ChunkList early_queue_;
};

}  // namespace elixir::daemon
