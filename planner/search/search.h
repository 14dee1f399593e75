#pragma once

// The search at one chunk length: which exchange, how many chunks on the GPU, and how many blocks.

#include <array>
#include <optional>
#include <vector>

#include "planner/search/benefit.h"
#include "planner/search/candidate.h"
#include "planner/search/make_plan.h"
#include "planner/search/refusal.h"

namespace elixir::planner {

// A candidate and the times of its simulated step.
struct Found {
  Candidate candidate;
  StepTimes times;
};

// `setting` and `request` must outlive the search and stay unchanged.
// Note: docs/design/elixir.md, "simulation before formulas".
class Search {
 public:
  Search(const Setting& setting, const PlanRequest& request, uint64_t allowed_bytes);

  // Whether any candidate can run.
  bool fits() const { return !starts_.empty(); }
  // The candidate with the fewest blocks and chunks on the GPU, with the exchange that takes least
  // of a node. REQUIRES: fits().
  LeastCandidate least() const;
  // The missing memory with the exchange for which least is missing. REQUIRES: !fits().
  Lack least_lack() const;

  // Simulates the closed forms' choices and a grid around them. REQUIRES: fits().
  Status look();
  // Simulates nearer and nearer neighbours of the best so far.
  Status refine();
  const Found& best() const { return best_; }
  // Reduces the best's spare slots to the fewest that gain enough (kFewerSlotsLoss). With none, its
  // updates are deferred unless early ones are asked for. REQUIRES: look() was called.
  Status settle_spare_slots();

  // Simulates plans with swing chunks. It begins with the closed form's stride and with 1, for each
  // exchange. The chunks on the GPU are as many as the best has, or as few as possible.
  // refine_swing() tries other strides and placements around each exchange's best of these.
  // REQUIRES: look() was called.
  Status look_for_swing();
  Status refine_swing();
  // Null: there is none.
  const Found* best_swing() const;
  // Why no swing chunks are tried or possible. kTaken: there is a best_swing().
  SwingFound::Why no_swing() const;
  // Why they are not taken where a best_swing() gains too little.
  SwingFound::Why no_gain() const;
  // Stores what was found over all chunk lengths. kTaken: best_swing() is the best from now on.
  // REQUIRES: settle_spare_slots() was not called yet.
  void settle_swing(const SwingFound& found);

  // The plan of the best. REQUIRES: look() was called.
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
  uint64_t node_bytes(const PlanBytes& bytes) const;      // its GPUs and its host together
  uint64_t long_numel(const Candidate& candidate) const;  // per long block; 0: it has none

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
  std::optional<Found>& best_swing(Exchange exchange);
  Status consider_swing(Exchange exchange, uint32_t stride, int64_t gpu_chunks);
  Status look_for_swing(const Candidate& start, uint32_t stride);
  Status refine_swing(Exchange exchange);
  Status try_shares(Exchange exchange, uint32_t stride);
  Status try_strides(Exchange exchange, int direction);

  const Setting& setting_;
  const PlanRequest& request_;
  const uint64_t allowed_bytes_;
  const Benefits benefits_;
  uint32_t fewest_ = 1;       // blocks that are enough for any operator
  uint32_t region_ = 1;       // blocks that are enough for any checkpointed region
  uint32_t fewest_long_ = 1;  // long blocks that are enough for any operator
  uint32_t least_spare_slots_ = 0;
  std::vector<Candidate> starts_;
  std::vector<Found> simulated_;
  Found best_;
  std::array<std::optional<Found>, 2> best_swings_;  // by exchange
  SwingFound swing_;
};

}  // namespace elixir::planner
