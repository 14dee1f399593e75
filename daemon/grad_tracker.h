#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace elixir::daemon {

// A copy of what a rank's ChunkRecord says of its gradients.
struct Publication {
  uint32_t step = 0, round = 0, revision = 0;
};

// What to do with one chunk, in one pass over its slices.
struct ChunkTask {
  uint32_t chunk = 0;
  uint64_t ranks = 0;        // a bit each: whose gradients sum_up takes
  bool sum_up = false;       // into the FP32 sums over rounds
  bool first_round = false;  // with sum_up: replaces what they hold
  bool squares = false;      // of the FP32 sums, or, where rounds are not summed, of all ranks' sum
  bool update = false;
};

// Which gradients of the step that comes next are there, which of them were taken, and what to do
// with each chunk: as soon as all local ranks have published it (`early` jobs), and at the post.
// Ranks are counted on this node.
//
// Publications are foreign. One counts when its step is the awaited one and its revision differs
// from the one before: whatever else a rank writes, a task is given out once for it. A task counts
// as done when it is given out; no other is started before it is.
//
// No thread, socket, clock or memory of a job. Allocates at construction alone.
class GradTracker {
 public:
  struct Rules {
    uint32_t ranks = 1;  // at most 64
    uint32_t n_chunks = 0;
    uint32_t accumulate = 1;  // rounds a step; above 1 they are summed in FP32
    bool immediate = false;   // a chunk is updated after the last of them
    bool norms = false;       // squares are summed as gradients come in

    bool sums_rounds() const { return accumulate > 1; }
    bool early() const { return sums_rounds() || immediate || norms; }

    bool operator==(const Rules&) const = default;
  };
  explicit GradTracker(const Rules& rules);

  const Rules& rules() const { return rules_; }
  uint32_t step() const { return step_; }  // the awaited one

  // kProtocol: a chunk that was updated is published again, or ranks are in different rounds.
  Status note(uint32_t rank, uint32_t chunk, const Publication& publication);
  // The last one that counted.
  const Publication& noted(uint32_t rank, uint32_t chunk) const {
    return noted_[uint64_t{chunk} * rules_.ranks + rank];
  }

  // The rank has posted the awaited step: it publishes no more of it, and others that do so need
  // not wait for it.
  void note_posted(uint32_t rank);
  // At the post: kProtocol when ranks that had brought gradients together discarded them alone.
  Status check_discards() const;

  // Chunks that all ranks have published since they were last taken, or will not; in early jobs.
  bool anything_ready() const { return !ready_.empty(); }

  // Each replaces `tasks`, whose capacity is n_chunks.
  void start_ready(std::vector<ChunkTask>* tasks);
  // At the post, before the verdict: what the squares of all chunks lack.
  void start_squares(std::vector<ChunkTask>* tasks);
  // After the verdict: all chunks that were not updated, in their order.
  void start_updates(std::vector<ChunkTask>* tasks);

  // Chunks have the awaited step's update before it is posted: the weights are of two steps.
  bool partly_updated() const;

  // Of the awaited step everything is known: the one after it is awaited from here on.
  // REQUIRES: start_updates() came before.
  void next_step();

  // What holds between any two calls, whatever ranks published. A pass over all chunks: once a
  // step.
  void check_invariant() const;

 private:
  struct Chunk {
    uint64_t fresh = 0;     // ranks with gradients that were not taken, a bit each
    uint32_t round = 0;     // the greatest of these
    bool restarts = false;  // these begin the sums anew
    bool ready = false;     // is in ready_
    bool taken = false;     // something of this step was
    bool has_squares = false;
    bool updated = false;
  };

  uint64_t all_ranks() const { return ~uint64_t{0} >> (64 - rules_.ranks); }
  void queue_if_ready(uint32_t chunk);
  Status check_rounds(uint32_t rank, uint32_t chunk, const Publication& publication) const;
  ChunkTask start(uint32_t chunk, bool squares, bool update);

  const Rules rules_;
  uint32_t step_ = 1;
  uint64_t posted_ = 0;  // ranks that posted it, a bit each
  std::vector<Chunk> chunks_;
  std::vector<Publication> noted_;  // chunk by chunk, all ranks
  std::vector<uint32_t> ready_;
};

}  // namespace elixir::daemon
