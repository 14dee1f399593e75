// Plans with swing chunks, at one chunk length.

#include <algorithm>

#include "planner/search/search.h"
#include "planner/search/step_of.h"

namespace elixir::planner {
namespace {

constexpr uint32_t kSwingGrid = 4;  // shares of chunks on the GPU that are simulated

}  // namespace

std::optional<Found>& Search::best_swing(Exchange exchange) {
  return best_swings_[exchange == Exchange::kCollective ? 1 : 0];
}

const Found* Search::best_swing() const {
  const Found* best = nullptr;
  for (const std::optional<Found>& one : best_swings_) {
    if (one && (best == nullptr || one->times.step_s < best->times.step_s)) best = &*one;
  }
  return best;
}

// kTaken: nothing speaks against any.
SwingFound::Why Search::swing_refusal() const {
  using enum SwingFound::Why;
  if (request_.policy != Policy::kElixir || request_.layout.swing_stride == 0u) return kNotAsked;
  if (request_.update == UpdateMode::kImmediate) return kImmediate;
  // A device that is the CPU updates on the workers' processors, which the simulation has apart.
  if (!request_.host_ahead && !request_.layout.swing_stride) return kNotAsked;
  return kTaken;
}

SwingFound::Why Search::no_swing() const {
  using enum SwingFound::Why;
  const SwingFound::Why refusal = swing_refusal();
  if (refusal != kTaken || best_swing() != nullptr) return refusal;
  bool runs = false, any_swings = false;
  for (const Candidate& start : starts_) {
    const Exchange exchange = start.exchange;
    const bool asked = request_.layout.gpu_state_share.has_value();
    const uint32_t gpu_chunks = asked ? start.gpu_chunks : fewest_gpu_chunks(exchange);
    const uint32_t stride = std::max(near_stride(exchange), 1u);
    const Candidate one{.gpu_chunks = gpu_chunks, .stride = stride, .exchange = exchange};
    runs |= runnable(one);
    any_swings |= shape_of(setting_, one).n_swing_chunks > 0;
  }
  if (!any_swings) return kNoChunk;
  if (!runs) return kRanks;
  return no_gain() == kSlowLink ? kSlowLink : kNoMemory;
}

SwingFound::Why Search::no_gain() const {
  const bool slow_link = near_stride(best_.candidate.exchange) == 0;
  return slow_link ? SwingFound::Why::kSlowLink : SwingFound::Why::kNoGain;
}

// The one that is asked for, or the closed form's, with which one chunk swings at least; 0: none.
uint32_t Search::near_stride(Exchange exchange) const {
  if (request_.layout.swing_stride) return *request_.layout.swing_stride;
  shm::Shape shape = shape_of(setting_, best_.candidate);
  shape.exchange = exchange;
  return std::min(swing_rates(setting_.machine, shape).stride, shape.n_chunks);
}

// As many of these chunks on the GPU as fit beside the swing chunks' buffers.
Status Search::consider_swing(Exchange exchange, uint32_t stride, int64_t gpu_chunks) {
  const uint32_t most = most_gpu_chunks(exchange, fewest_, stride);
  const auto placed = static_cast<uint32_t>(std::clamp<int64_t>(gpu_chunks, 0, most));
  Candidate candidate{
      .gpu_chunks = setting_.packing.whole_runs(placed), .stride = stride, .exchange = exchange};
  if (!fill(&candidate, fewest_) || shape_of(setting_, candidate).n_swing_chunks == 0) {
    return Status();
  }
  Candidate fewest = candidate;
  fewest.spare_slots = least_spare_slots(candidate);
  for (const Candidate& one : {candidate, fewest}) {
    const Result<StepTimes> times = times_of(one);
    if (!times.ok()) return times.status();
    std::optional<Found>& best = best_swing(exchange);
    if (!best || times->step_s < best->times.step_s) best = Found{one, *times};
    if (fewest == candidate) break;
  }
  return Status();
}

// Also all of the chunks at once, unless a stride is asked for: where host memory binds, that may
// be the faster of two optima, since an update takes less of it through the GPU than on the CPU.
// Then it may gain even where the closed form says that none should swing.
Status Search::look_for_swing() {
  if (swing_refusal() != SwingFound::Why::kTaken) return Status();
  for (const Candidate& start : starts_) {
    const uint32_t near = std::max(near_stride(start.exchange), 1u);
    const uint32_t last = request_.layout.swing_stride ? near : 1;
    for (uint32_t stride = near;; stride = last) {
      ELIXIR_RETURN_IF_ERROR(look_for_swing(start, stride));
      if (stride == last) break;
    }
  }
  return Status();
}

Status Search::look_for_swing(const Candidate& start, uint32_t stride) {
  const bool as_best = start.exchange == best_.candidate.exchange;
  const uint32_t gpu_chunks = as_best ? best_.candidate.gpu_chunks : start.gpu_chunks;
  ELIXIR_RETURN_IF_ERROR(consider_swing(start.exchange, stride, gpu_chunks));
  const uint32_t fewest = fewest_gpu_chunks(start.exchange);
  if (request_.layout.gpu_state_share || fewest == gpu_chunks) return Status();
  return consider_swing(start.exchange, stride, fewest);
}

// Rarer ones, or more, as long as that is faster. REQUIRES: best_swing(exchange).
Status Search::try_strides(Exchange exchange, int direction) {
  for (;;) {
    const Candidate before = best_swing(exchange)->candidate;
    const int64_t stride = int64_t{before.stride} + direction;
    if (stride < 1) return Status();
    ELIXIR_RETURN_IF_ERROR(
        consider_swing(exchange, static_cast<uint32_t>(stride), before.gpu_chunks));
    if (best_swing(exchange)->candidate.stride == before.stride) return Status();
  }
}

// For both exchanges. The slower one may become the faster one with another stride.
Status Search::refine_swing() {
  for (const Candidate& start : starts_) {
    if (best_swing(start.exchange)) ELIXIR_RETURN_IF_ERROR(refine_swing(start.exchange));
  }
  return Status();
}

Status Search::try_shares(Exchange exchange, uint32_t stride) {
  const uint32_t low = fewest_gpu_chunks(exchange);
  const uint32_t high = std::max(low, most_gpu_chunks(exchange, fewest_, stride));
  for (uint64_t i = 0; i <= kSwingGrid; ++i) {
    const uint64_t gpu_chunks = low + (high - low) * i / kSwingGrid;
    ELIXIR_RETURN_IF_ERROR(consider_swing(exchange, stride, static_cast<int64_t>(gpu_chunks)));
  }
  return Status();
}

// The best stride depends on the share of chunks on the GPU, so the next ones are tried at each
// share.
Status Search::refine_swing(Exchange exchange) {
  const uint32_t stride = best_swing(exchange)->candidate.stride;
  const bool any_share = !request_.layout.gpu_state_share;
  if (any_share) ELIXIR_RETURN_IF_ERROR(try_shares(exchange, stride));
  if (request_.layout.swing_stride) return Status();
  if (any_share) ELIXIR_RETURN_IF_ERROR(try_shares(exchange, stride + 1));
  if (any_share && stride > 1) ELIXIR_RETURN_IF_ERROR(try_shares(exchange, stride - 1));
  ELIXIR_RETURN_IF_ERROR(try_strides(exchange, -1));
  return try_strides(exchange, +1);
}

void Search::settle_swing(const SwingFound& found) {
  swing_ = found;
  if (found.why == SwingFound::Why::kTaken) best_ = *best_swing();
}

}  // namespace elixir::planner
