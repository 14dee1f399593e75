// Whether a plan has swing chunks, and which.

#include "planner/search/search.h"
#include "planner/search/step_of.h"

namespace elixir::planner {

// kTaken: nothing speaks against any.
SwingFound::Why Search::no_swing() const {
  using enum SwingFound::Why;
  if (request_.policy != Policy::kElixir || request_.layout.swing_stride == 0u) return kNotAsked;
  if (request_.update == UpdateMode::kImmediate) return kImmediate;
  // A device that is the CPU updates on the workers' processors, which the simulation has apart.
  if (!request_.host_ahead && !request_.layout.swing_stride) return kNotAsked;
  return kTaken;
}

// The best with these: fewer chunks are placed on the GPU where their buffers need the room. Empty:
// they do not fit.
Result<std::optional<Found>> Search::with_stride(uint32_t stride) const {
  Candidate candidate = best_.candidate;
  candidate.stride = stride;
  bool fits = fill(&candidate, fewest_);
  while (!fits && candidate.gpu_chunks > 0 && !request_.layout.gpu_state_share) {
    candidate.gpu_chunks = setting_.packing.whole_runs(candidate.gpu_chunks - 1);
    fits = fill(&candidate, fewest_);
  }
  if (!fits) return std::optional<Found>();
  std::optional<Found> shortest;
  Candidate fewest = candidate;
  fewest.spare_slots = least_spare_slots(candidate);
  for (const Candidate& one : {candidate, fewest}) {
    const Result<StepTimes> times = times_of(one);
    if (!times.ok()) return times.status();
    if (!shortest || times->step_s < shortest->times.step_s) shortest = Found{one, *times};
  }
  return shortest;
}

// Around the closed form's stride.
Status Search::settle_swing() {
  swing_.why = no_swing();
  if (swing_.why != SwingFound::Why::kTaken) return Status();
  const shm::Shape shape = shape_of(setting_, best_.candidate);
  const auto image = static_cast<uint32_t>(element_bytes(shape.type) + shape.element_state_bytes());
  const uint32_t gradients = shape.exchange == Exchange::kHost ? shape.ranks : 1;
  const std::optional<uint32_t> asked = request_.layout.swing_stride;
  const uint32_t near = asked.value_or(swing_rates(setting_.machine, image, gradients).stride);
  if (near == 0) swing_.why = SwingFound::Why::kSlowLink;
  if (near == 0) return Status();
  std::optional<Found> shortest;
  for (const uint32_t stride : {near, near - 1, near + 1}) {
    if (stride == 0 || (asked && stride != *asked)) continue;
    const Result<std::optional<Found>> found = with_stride(stride);
    if (!found.ok()) return found.status();
    if (!*found || shape_of(setting_, (*found)->candidate).n_swing_chunks == 0) continue;
    if (!shortest || (*found)->times.step_s < shortest->times.step_s) shortest = *found;
  }
  swing_.without_s = best_.times.step_s;
  if (!shortest) swing_.why = SwingFound::Why::kNoMemory;
  if (!shortest) return Status();
  swing_.stride = shortest->candidate.stride;
  swing_.step_s = shortest->times.step_s;
  const bool gains = swing_.step_s <= (1 - kSwingGain) * swing_.without_s;
  if (!gains && !asked) swing_.why = SwingFound::Why::kNoGain;
  if (gains || asked) best_ = *shortest;
  return Status();
}

}  // namespace elixir::planner
