#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "shm/shape.h"

namespace elixir::daemon {

// Updates of the swing chunks in one step: which of them trainers may make, which ranks of this
// node have made theirs, and which chunks are published. Each rank updates its own shard of each
// chunk. A chunk is published once all ranks have updated it, and after the chunk before it in its
// lane, so that a lane's slots change hands in one order.
//
// Owned by the event loop. No thread, memory of a job or clock. Allocates only at construction.
class SwingUpdates {
 public:
  SwingUpdates(const shm::Shape& shape, uint32_t ranks)
      : first_(shape.first_swing()),
        n_lanes_(shape.n_swing_lanes),
        ranks_(ranks),
        chunks_(shape.n_swing_chunks),
        told_steps_(uint64_t{ranks} * shape.n_swing_chunks, 0),
        first_missing_(ranks, first_),
        next_in_lane_(shape.n_swing_lanes) {}

  uint32_t first() const { return first_; }
  uint32_t end() const { return first_ + n_chunks(); }
  uint32_t n_chunks() const { return static_cast<uint32_t>(chunks_.size()); }

  // Begins the step: its gradients are all there, and it is not skipped. REQUIRES: over().
  void begin(uint32_t step) {
    ELIXIR_CHECK(over(), "step {} begins, and {} swing chunks wait for step {}", step, left_,
                 step_);
    step_ = step;
    left_ = n_chunks();
    begun_ = true;
    given_up_ = false;
    for (Chunk& chunk : chunks_) chunk = {};
    for (uint32_t& chunk : first_missing_) chunk = first_;
    for (uint32_t lane = 0; lane < n_lanes_; ++lane) next_in_lane_[lane] = first_ + lane;
    first_closed_ = first_;
    awaits_sums_ = false;
  }
  // Whether every chunk is published, or the step is given up.
  bool over() const { return left_ == 0; }
  // Whether begin() was called, and end_step() not yet.
  bool begun() const { return begun_; }
  void end_step() { begun_ = false; }
  void give_up() {
    left_ = 0;
    given_up_ = true;
  }
  bool given_up() const { return given_up_; }
  uint32_t step() const { return step_; }
  uint32_t left() const { return left_; }

  // Trainers may update the chunk.
  void open(uint32_t chunk) { at(chunk).open = true; }
  bool is_open(uint32_t chunk) const { return at(chunk).open; }
  // The first chunk that is neither open nor waits for its sum; end(): none. All calls of a step
  // together look at each chunk twice at most.
  uint32_t first_to_open() {
    while (first_closed_ < end() && (is_open(first_closed_) || at(first_closed_).awaits_sum)) {
      ++first_closed_;
    }
    return first_closed_;
  }
  // `of_sums`: the chunk's gradients are the sums over micro-steps. `awaits`: workers still have
  // some to add.
  void note_sums(uint32_t chunk, bool of_sums, bool awaits) {
    at(chunk).of_sums = of_sums;
    at(chunk).awaits_sum = awaits;
    awaits_sums_ = awaits_sums_ || awaits;
  }
  bool of_sums(uint32_t chunk) const { return at(chunk).of_sums; }
  // Workers have added all gradients to the sums.
  void sums_are_there() {
    if (!std::exchange(awaits_sums_, false)) return;
    for (Chunk& chunk : chunks_) chunk.awaits_sum = false;
    first_closed_ = first_;
  }

  // Notes the step of a rank's last update, as its SwingRecord says. False: it is neither the step
  // noted before nor the step in flight, or the chunk is not open.
  bool note(uint32_t rank, uint32_t chunk, uint32_t step) {
    uint32_t& before = told_steps_[uint64_t{rank} * n_chunks() + (chunk - first_)];
    if (step == before) return true;
    if (over() || step != step_ || !at(chunk).open || has(rank, chunk)) return false;
    before = step;
    at(chunk).ranks |= uint64_t{1} << rank;
    return true;
  }
  // elixird has made the update for these ranks, a bit each.
  void take_over(uint32_t chunk, uint64_t ranks) { at(chunk).ranks |= ranks; }
  bool has(uint32_t rank, uint32_t chunk) const { return (at(chunk).ranks >> rank & 1) != 0; }
  // The first chunk that the rank has not updated; end(): none.
  uint32_t first_missing(uint32_t rank) {
    uint32_t& chunk = first_missing_[rank];
    while (chunk < end() && has(rank, chunk)) ++chunk;
    return chunk;
  }

  // Whether all ranks have updated it, and it is next in its lane.
  bool may_publish(uint32_t chunk) const {
    return !given_up_ && at(chunk).ranks == all_ranks() && is_next(chunk);
  }
  // The first chunk of the lane that is not published; end() or beyond: none.
  uint32_t next_in_lane(uint32_t lane) const { return next_in_lane_[lane]; }
  bool is_next(uint32_t chunk) const { return next_in_lane_[lane_of(chunk)] == chunk; }
  void publish(uint32_t chunk) {
    ELIXIR_CHECK(may_publish(chunk), "swing chunk {} is published before its time", chunk);
    next_in_lane_[lane_of(chunk)] += n_lanes_;
    --left_;
  }
  // Ranks, a bit each, that have not updated it.
  uint64_t missing(uint32_t chunk) const { return all_ranks() & ~at(chunk).ranks; }

 private:
  struct Chunk {
    uint64_t ranks = 0;  // ranks that have updated it, a bit each
    bool open = false, of_sums = false, awaits_sum = false;
  };
  uint32_t lane_of(uint32_t chunk) const { return (chunk - first_) % n_lanes_; }
  uint64_t all_ranks() const { return ~uint64_t{0} >> (64 - ranks_); }
  Chunk& at(uint32_t chunk) { return chunks_[chunk - first_]; }
  const Chunk& at(uint32_t chunk) const { return chunks_[chunk - first_]; }

  const uint32_t first_, n_lanes_, ranks_;
  uint32_t step_ = 0, left_ = 0;
  bool begun_ = false, given_up_ = false, awaits_sums_ = false;
  uint32_t first_closed_ = 0;  // all before it are open, or wait for their sums
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> told_steps_;     // rank by rank, all chunks
  std::vector<uint32_t> first_missing_;  // by rank: no chunk before it is missing
  std::vector<uint32_t> next_in_lane_;
};

}  // namespace elixir::daemon
