#pragma once

// The search at one chunk length: which exchange, how many chunks on the GPU, how many blocks.

#include <optional>
#include <vector>

#include "planner/search/benefit.h"
#include "planner/search/candidate.h"
#include "planner/search/make_plan.h"
#include "planner/search/refusal.h"

namespace elixir::planner {

// A candidate and what its step was simulated to be.
struct Found {
  Candidate candidate;
  StepTimes times;
};

// `setting` and `request` stay as they are while it lives.
// Note: docs/design/elixir.md, "simulation before formulas".
class Search {
 public:
  Search(const Setting& setting, const PlanRequest& request, uint64_t allowed_bytes);

  // Whether anything can run.
  bool fits() const { return !starts_.empty(); }
  // With the fewest blocks and chunks on the GPU, of the exchange that takes least of a node.
  // REQUIRES: fits().
  LeastCandidate least() const;
  // Where nothing fits: for the exchange that lacks least. REQUIRES: !fits().
  Lack least_lack() const;

  // Simulates the closed forms' choices and a grid around them. REQUIRES: fits().
  Status look();
  // Nearer and nearer around the best so far.
  Status refine();
  const Found& best() const { return best_; }
  // Of the best, as few spare slots as gain what most do (kEarlyGain); none of them: deferred
  // updates, unless early ones are asked for. REQUIRES: look() has been.
  Status settle_spare_slots();

  // Plans with swing chunks: first one of the closed form's stride for each exchange and for chunks
  // on the GPU as the best has them or as few as can be, then other strides and placements around
  // it. REQUIRES: look() has been.
  Status look_for_swing();
  Status refine_swing();
  const std::optional<Found>& best_swing() const { return best_swing_; }
  // Why none is looked for, or can be; kTaken: best_swing() is one.
  SwingFound::Why no_swing() const;
  // What was found, of all lengths. kTaken: best_swing() is the best from here on. REQUIRES: before
  // settle_spare_slots().
  void settle_swing(const SwingFound& found);

  // What was found. REQUIRES: look() has been.
  Result<PlannedStep> finish() const;

 private:
  uint32_t asked_blocks(uint32_t otherwise) const {
    return request_.layout.rcache_blocks != 0 ? request_.layout.rcache_blocks : otherwise;
  }
  uint32_t least_spare_slots(const Candidate& candidate) const;
  uint32_t most_spare_slots(const Candidate& candidate) const;
  UpdateMode update_of(const Candidate& candidate) const;
  bool states_on_gpu(Exchange exchange) const;
  bool runnable(const Candidate& candidate) const;
  bool host_holds(const Candidate& candidate) const;
  bool gpu_holds(const Candidate& candidate) const;
  uint32_t least_blocks(uint32_t gpu_chunks, uint32_t needed) const;
  uint32_t long_blocks(uint32_t gpu_chunks, uint32_t more = 0) const;
  bool fill(Candidate* candidate, uint32_t needed_blocks, uint32_t more_long_blocks = 0) const;
  uint32_t fewest_gpu_chunks(Exchange exchange) const;
  uint32_t most_gpu_chunks(Exchange exchange, uint32_t blocks, uint32_t stride = 0) const;
  std::vector<Exchange> exchanges() const;
  std::vector<Candidate> closed_forms() const;
  std::optional<Candidate> closed_form(Exchange exchange) const;
  uint32_t asked_gpu_chunks() const;
  std::string asked_by_flags() const;
  Lack lack_of(Exchange exchange) const;
  uint64_t node_bytes(const PlanBytes& bytes) const;      // of its GPUs and its host
  uint64_t long_numel(const Candidate& candidate) const;  // of a long block; 0: it has none

  StepRuntime runtime_of(const Candidate& candidate) const;
  Result<StepTimes> simulate(const StepModel& once) const;
  Result<StepTimes> times_of(const Candidate& candidate);
  Status tell_gains(const StepModel& once, Plan* plan) const;
  Status consider(const Candidate& candidate);
  Status consider_placement(Exchange exchange, int64_t gpu_chunks);
  Status look_around(Exchange exchange);
  Status consider_long_blocks();
  SwingFound::Why swing_refusal() const;
  uint32_t near_stride(Exchange exchange) const;
  Status consider_swing(Exchange exchange, uint32_t stride, int64_t gpu_chunks);
  Status look_for_swing(const Candidate& start, uint32_t stride);
  Status try_strides(int direction);

  const Setting& setting_;
  const PlanRequest& request_;
  const uint64_t allowed_bytes_;
  const Benefits benefits_;
  uint32_t fewest_ = 1;       // blocks, for any operator
  uint32_t region_ = 1;       // for any checkpointed region
  uint32_t fewest_long_ = 1;  // long ones, for any operator
  uint32_t least_spare_slots_ = 0;
  std::vector<Candidate> starts_;
  std::vector<Found> simulated_;
  Found best_;
  std::optional<Found> best_swing_;
  SwingFound swing_;
};

}  // namespace elixir::planner
