#pragma once

// The search over chunk lengths, of make_plan.cpp.

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "planner/chunks/chunk_search.h"
#include "planner/search/search.h"
#include "planner/search/search_input.h"

namespace elixir::planner {

// So many of the simulated lengths are looked at more closely, without swing chunks and with.
inline constexpr size_t kRefinedLengths = 5;
// Around the fastest so far of each kind, so many shorter and longer ones are simulated, too.
inline constexpr std::ptrdiff_t kNeighbours = 3;
// Steps as near as this are alike, far nearer than predictions hold. The plan takes the length with
// the least padding among them, because padding takes memory of the GPU and the host.
inline constexpr double kAlike = kFewerSlotsLoss;

// A strategy by name leaves nothing to choose.
inline PlanRequest with_strategy(PlanRequest request, const Packing& packing) {
  if (request.policy == Policy::kZero2Offload)
    request.layout.rcache_blocks = request.layout.long_blocks = packing.total_chunks();
  if (request.policy == Policy::kZero3Offload)
    request.layout.rcache_blocks = request.layout.long_blocks = 1;  // as few as can be
  if (is_zero(request.policy)) request.layout.gpu_state_share = 0;
  return request;
}

// One plan: its input, and a search for each length that is looked at.
class Planner {
 public:
  // Both must outlive it and stay unchanged.
  Planner(const SearchInput& input, const PlanRequest& request)
      : input_(input),
        request_(request),
        leaves_unused_(request.policy == Policy::kElixir && input.profile.leaves_unused()),
        compute_(step_compute(input.profile, input.machine, input.measure)) {}

  Result<PlannedStep> run() {
    ELIXIR_RETURN_IF_ERROR(find_lengths());
    for (const uint64_t numel : chosen_lengths()) ELIXIR_RETURN_IF_ERROR(look(numel));
    ELIXIR_RETURN_IF_ERROR(refine_fastest());
    if (request_.layout.chunk_numel == 0 && request_.policy == Policy::kElixir) {
      // Lengths below and from the longest parameter's have an optimum each.
      ELIXIR_RETURN_IF_ERROR(look_near_fastest(lengths_));
      ELIXIR_RETURN_IF_ERROR(look_near_fastest(shorter_));
      ELIXIR_RETURN_IF_ERROR(refine_fastest());
    }
    const double most_s = (1 + kAlike) * fastest()->step_s();
    AtLength* chosen = fastest();
    for (const auto& one : looked_at_) {
      const bool alike = one->step_s() <= most_s;
      if (alike && one->held_numel() < chosen->held_numel()) chosen = one.get();
    }
    ELIXIR_RETURN_IF_ERROR(settle_swing(&chosen));
    ELIXIR_RETURN_IF_ERROR(chosen->search.settle_spare_slots());
    return chosen->search.finish();
  }

  // The shortest step at this length, with some of what run() looks at. Infinite: it does not fit.
  Result<double> step_s_at(uint64_t numel) {
    const double never = std::numeric_limits<double>::infinity();
    if (!input_.unfit.ok()) return never;
    AtLength at(*this, pack(packed_sizes(input_.profile), numel));
    if (!at.search.fits()) return never;
    ELIXIR_RETURN_IF_ERROR(at.search.look());
    ELIXIR_RETURN_IF_ERROR(at.search.refine());
    return at.step_s();
  }

  Result<LeastCandidate> least() {
    ELIXIR_RETURN_IF_ERROR(find_lengths());
    ELIXIR_CHECK(least_.has_value(), "a length fits, and it takes nothing");
    return *least_;
  }

  // Why run() or least() returned an error.
  const std::optional<Lack>& lack() const { return lack_; }

 private:
  struct AtLength {
    AtLength(const Planner& planner, Packing packed)
        : packing(std::move(packed)),
          setting(planner.setting_of(packing)),
          request(with_strategy(planner.request_, packing)),
          search(setting, request, planner.input_.allowed_bytes) {}

    double step_s() const { return search.best().times.step_s; }
    double swing_step_s() const {
      return search.best_swing() ? search.best_swing()->times.step_s
                                 : std::numeric_limits<double>::infinity();
    }
    uint64_t held_numel() const { return packing.total_chunks() * packing.chunk_numel; }

    const Packing packing;
    const Setting setting;
    const PlanRequest request;
    Search search;
  };

  Setting setting_of(const Packing& packing) const {
    return {.profile = input_.profile,
            .machine = input_.machine,
            .packing = packing,
            .compute = compute_,
            .accumulates = request_.accumulate > 1,
            .copies_at_once = request_.copies_at_once,
            .frozen_on_gpu = request_.frozen_on_gpu,
            .paper = request_.policy != Policy::kElixir,
            .leaves_unused = leaves_unused_,
            .grads_in_blocks = request_.policy == Policy::kPaper};
  }

  // Those that fit; without one, why the nearest does not.
  Status find_lengths() {
    std::optional<Lack> nearest;
    const auto fits = [&](const Packing& packing) {
      const AtLength at(*this, packing);
      if (at.search.fits()) {
        const LeastCandidate least = at.search.least();
        if (!least_ || least.bytes.gpu() < least_->bytes.gpu()) least_ = least;
        return true;
      }
      const Lack lack = at.search.least_lack();
      if (!nearest || lacks_less(lack, *nearest)) nearest = lack;
      return false;
    };
    const bool asked = request_.layout.chunk_numel != 0;
    all_lengths_ = asked ? std::vector{ChunkLength{request_.layout.chunk_numel}}
                         : chunk_lengths(input_.profile);
    lengths_ = lengths_that_fit(input_.profile, all_lengths_, fits);
    // Only this runtime has long blocks.
    if (!asked && request_.policy == Policy::kElixir) {
      all_shorter_ = shorter_lengths(input_.profile);
      shorter_ = lengths_that_fit(input_.profile, all_shorter_, fits);
    }
    if (!lengths_.empty() || !shorter_.empty()) return Status();
    ELIXIR_CHECK(nearest.has_value(), "none of {} lengths fits, and none has an error",
                 all_lengths_.size());
    lack_ = nearest;
    return refusal(*nearest);
  }

  std::vector<uint64_t> chosen_lengths() const {
    if (request_.layout.chunk_numel != 0) return {request_.layout.chunk_numel};
    // The papers' runtimes take the length that moves least.
    if (request_.policy != Policy::kElixir) {
      return {least_moving_length(input_.profile, lengths_, input_.allowed_bytes)};
    }
    std::vector<uint64_t> chosen =
        lengths_to_simulate(input_.profile, all_lengths_, lengths_, input_.allowed_bytes);
    const std::vector<uint64_t> shorter = lengths_to_simulate(
        input_.profile, all_shorter_, shorter_, input_.allowed_bytes, kShorterRanges);
    chosen.insert(chosen.end(), shorter.begin(), shorter.end());
    return chosen;
  }

  // At the neighbours of the one of these lengths with the shortest step so far.
  Status look_near_fastest(const std::vector<ChunkLength>& lengths) {
    double fastest_s = std::numeric_limits<double>::infinity();
    std::ptrdiff_t place = -1;
    for (const auto& one : looked_at_) {
      const auto at = std::find_if(lengths.begin(), lengths.end(), [&](const ChunkLength& length) {
        return length.numel == one->packing.chunk_numel;
      });
      if (at == lengths.end() || one->step_s() >= fastest_s) continue;
      fastest_s = one->step_s();
      place = at - lengths.begin();
    }
    if (place < 0) return Status();
    const std::ptrdiff_t last = std::min(place + kNeighbours, std::ssize(lengths) - 1);
    for (auto i = std::max<std::ptrdiff_t>(place - kNeighbours, 0); i <= last; ++i) {
      ELIXIR_RETURN_IF_ERROR(look(lengths[static_cast<size_t>(i)].numel));
    }
    return Status();
  }

  Status look(uint64_t numel) {
    for (const auto& one : looked_at_) {
      if (one->packing.chunk_numel == numel) return Status();
    }
    looked_at_.push_back(
        std::make_unique<AtLength>(*this, pack(packed_sizes(input_.profile), numel)));
    return looked_at_.back()->search.look();
  }

  Status refine_fastest() {
    std::stable_sort(looked_at_.begin(), looked_at_.end(),
                     [](const auto& a, const auto& b) { return a->step_s() < b->step_s(); });
    const size_t n = std::min(looked_at_.size(), kRefinedLengths);
    for (size_t i = 0; i < n; ++i) ELIXIR_RETURN_IF_ERROR(looked_at_[i]->search.refine());
    return Status();
  }

  // It looks at all lengths: the best one without swing chunks may have no room for them. They
  // are taken where they gain, or are asked for.
  Status settle_swing(AtLength** chosen) {
    for (const auto& one : looked_at_) ELIXIR_RETURN_IF_ERROR(one->search.look_for_swing());
    std::stable_sort(looked_at_.begin(), looked_at_.end(), [](const auto& a, const auto& b) {
      return a->swing_step_s() < b->swing_step_s();
    });
    const size_t n = std::min(looked_at_.size(), kRefinedLengths);
    AtLength* swinging = looked_at_.front().get();
    for (size_t i = 0; i < n; ++i) {
      ELIXIR_RETURN_IF_ERROR(looked_at_[i]->search.refine_swing());
      if (looked_at_[i]->swing_step_s() < swinging->swing_step_s()) swinging = looked_at_[i].get();
    }
    SwingFound found{.why = swinging->search.no_swing()};
    if (const Found* best = swinging->search.best_swing()) {
      found.stride = best->candidate.stride;
      found.step_s = best->times.step_s;
      found.without_s = (*chosen)->step_s();
      const bool gains = found.step_s <= (1 - kSwingGain) * found.without_s;
      if (!gains && !request_.layout.swing_stride) found.why = swinging->search.no_gain();
    }
    if (found.why == SwingFound::Why::kTaken) *chosen = swinging;
    (*chosen)->search.settle_swing(found);
    return Status();
  }

  AtLength* fastest() const {
    ELIXIR_CHECK(!looked_at_.empty(), "no length has been looked at");
    return std::min_element(looked_at_.begin(), looked_at_.end(),
                            [](const auto& a, const auto& b) { return a->step_s() < b->step_s(); })
        ->get();
  }

  const SearchInput& input_;
  const PlanRequest& request_;
  const bool leaves_unused_;
  const StepCompute compute_;
  std::optional<Lack> lack_;                        // if nothing fits
  std::optional<LeastCandidate> least_;             // the least that fits
  std::vector<ChunkLength> all_lengths_, lengths_;  // ascending; those that fit
  std::vector<ChunkLength> all_shorter_, shorter_;  // of shorter_lengths(), likewise
  std::vector<std::unique_ptr<AtLength>> looked_at_;
};

}  // namespace elixir::planner
