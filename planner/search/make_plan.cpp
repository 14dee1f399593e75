#include "planner/search/make_plan.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "planner/search/planner.h"
#include "planner/search/region_choice.h"
#include "planner/search/search_input.h"

namespace elixir::planner {
namespace {

// Spare slots are taken if they gain kEarlyGain over the best plan without, which may have another
// length and placement.
Result<PlannedStep> early_if_worth(const SearchInput& input, const PlanRequest& request,
                                   PlannedStep early) {
  const bool chooses = request.policy == Policy::kElixir && !request.update &&
                       !request.layout.spare_slots && early.plan.chosen.spare_slots > 0;
  if (!chooses) return early;
  PlanRequest deferred = request;
  deferred.update = UpdateMode::kDeferred;
  Result<PlannedStep> without = Planner(input, deferred).run();
  if (!without.ok()) return without;
  const double early_s = early.plan.predicted.step_s, without_s = without->plan.predicted.step_s;
  if (early_s <= (1 - kEarlyGain) * without_s) return early;
  if (early_s < without_s) without->plan.early_step_s = early_s;
  return without;
}

Result<PlannedStep> plan_of(const SearchInput& input, const PlanRequest& request) {
  if (!input.unfit.ok()) return input.unfit;
  Result<PlannedStep> planned = Planner(input, request).run();
  if (planned.ok()) planned = early_if_worth(input, request, std::move(*planned));
  if (!planned.ok()) return planned;
  planned->plan.assumed_fp32 = input.assumed_fp32;
  planned->plan.region_plan = input.region_plan;
  planned->plan.kept_bytes = input.profile.held_bytes;
  return planned;
}

// The same input without any second run, in the memory that `base` takes: no choice of regions can
// have a shorter step.
SearchInput without_second_runs(const SearchInput& input, const PlanRequest& request,
                                const SearchInput& base) {
  const auto n = static_cast<uint32_t>(input.profile.regions.size());
  SearchInput free = with_regions(input, request, {.regions = n, .keep_all = n});
  free.allowed_bytes = base.allowed_bytes;
  free.unfit = base.unfit;
  return free;
}

// What regions may keep and send, at one length of chunks. A choice that was looked at is known.
class RegionPlanner {
 public:
  RegionPlanner(const SearchInput& input, const PlanRequest& request, const SearchInput& base,
                uint64_t numel)
      : input_(input), request_(request), base_(base), numel_(numel) {}

  Result<double> step_s(const SearchInput& at) const {
    return Planner(at, request_).step_s_at(numel_);
  }

  // REQUIRES: the plan was chosen, or looked at.
  double known_s(const RegionPlan& plan) const {
    const auto known = std::find_if(known_.begin(), known_.end(),
                                    [&](const auto& one) { return one.first == plan; });
    ELIXIR_CHECK(known != known_.end(), "a choice that nobody looked at");
    return known->second;
  }

  Result<RegionPlan> choose(RegionsMay may) {
    return choose_regions(base_.region_plan, may, [this](const RegionPlan& plan) -> Result<double> {
      for (const auto& [known, known_s] : known_) {
        if (known == plan) return known_s;
      }
      const SearchInput at = with_regions(input_, request_, plan);
      const uint64_t most_bytes = request_.regions.host_bytes;
      const bool too_much = most_bytes > 0 && at.profile.sent_bytes > most_bytes;
      const Result<double> found = too_much ? std::numeric_limits<double>::infinity() : step_s(at);
      if (found.ok()) known_.emplace_back(plan, *found);
      return found;
    });
  }

 private:
  const SearchInput& input_;
  const PlanRequest& request_;
  const SearchInput& base_;
  const uint64_t numel_;
  std::vector<std::pair<RegionPlan, double>> known_;
};

// A choice that is longer than another one by more than this factor at one length stays so at
// others.
constexpr double kNearS = 1.03;

// Regions keep and send what shortens the step, at the length of chunks that is best if they do
// only what `base` says. Then all lengths are looked at again, with this choice and with the best
// one that only keeps: over all lengths they may be in another order.
Result<PlannedStep> keep_if_worth(const SearchInput& input, const PlanRequest& request,
                                  const SearchInput& base, PlannedStep planned) {
  RegionPlanner regions(input, request, base, planned.plan.chunk_numel);
  const Result<double> now_s = regions.step_s(base);
  if (!now_s.ok()) return now_s.status();
  const Result<double> least_s = regions.step_s(without_second_runs(input, request, base));
  if (!least_s.ok()) return least_s.status();
  if (*least_s > (1 - kRegionGain) * *now_s) return planned;
  const bool open = request.regions.mode == Activations::Mode::kAuto;
  std::vector<RegionPlan> chosen;
  for (const RegionsMay may : open ? std::vector{RegionsMay::kAnything, RegionsMay::kKeep}
                                   : std::vector{RegionsMay::kSendProducts}) {
    const Result<RegionPlan> one = regions.choose(may);
    if (!one.ok()) return one.status();
    const bool known = std::find(chosen.begin(), chosen.end(), *one) != chosen.end();
    if (known || *one == base.region_plan) continue;
    if (chosen.empty() || regions.known_s(*one) <= kNearS * regions.known_s(chosen.front())) {
      chosen.push_back(*one);
    }
  }
  const double most_s = (1 - kRegionGain) * planned.plan.predicted.step_s;
  for (const RegionPlan& plan : chosen) {
    Result<PlannedStep> other = plan_of(with_regions(input, request, plan), request);
    if (!other.ok() && other.status().code() == Code::kResourceExhausted) continue;
    if (!other.ok()) return other;
    const double other_s = other->plan.predicted.step_s;
    if (other_s <= most_s && other_s < planned.plan.predicted.step_s) planned = std::move(*other);
  }
  return planned;
}

LeastPlan least_of(const SearchInput& input, const PlanRequest& request) {
  LeastPlan least;
  least.sends = input.region_plan.sends_any();
  Planner planner(input, request);
  const Result<LeastCandidate> found = planner.least();
  if (found.ok()) {
    static_cast<LeastCandidate&>(least) = *found;
    least.room_bytes = static_cast<double>(input.allowed_bytes) -
                       static_cast<double>(chosen_gpu_bytes(found->bytes));
    return least;
  }
  least.refusal = input.unfit.ok() ? found.status() : input.unfit;
  const Lack& lack = *planner.lack();
  least.bytes = lack.bytes;
  least.candidate = lack.least;
  const uint64_t short_bytes =
      lack.bytes_short() + activations_short(input.profile, input.machine, input.allowed_bytes);
  least.room_bytes = -static_cast<double>(short_bytes);
  (lack.of_gpu() ? least.gpu_short_bytes : least.host_short_bytes) = short_bytes;
  return least;
}

// Whether what regions do is the plan's to say, at least in part.
bool chooses_regions(const SearchInput& input, const PlanRequest& request) {
  const Activations::Mode mode = request.regions.mode;
  return request.policy == Policy::kElixir && !input.profile.regions.empty() &&
         (mode == Activations::Mode::kAuto || mode == Activations::Mode::kHost);
}

// With what its regions send in any case. Where nothing fits without that, they send their inputs
// if that fits, or lacks less.
SearchInput with_base_regions(const SearchInput& input, const PlanRequest& request) {
  if (!chooses_regions(input, request)) return input;
  SearchInput base = with_regions(input, request, input.region_plan);
  if (base.region_plan.sends_any()) return base;
  const LeastPlan least = least_of(base, request);
  if (least.fits()) return base;
  RegionPlan plan = input.region_plan;
  plan.host_boundaries = plan.regions;
  SearchInput sending = with_regions(input, request, plan);
  return least_of(sending, request).room_bytes > least.room_bytes ? sending : base;
}

}  // namespace

Result<PlannedStep> make_plan(const ModelProfile& asked, const Machine& as_measured,
                              const PlanRequest& request) {
  const Result<SearchInput> input = search_input(asked, as_measured, request);
  if (!input.ok()) return input.status();
  const SearchInput base = with_base_regions(*input, request);
  Result<PlannedStep> planned = plan_of(base, request);
  if (!planned.ok() || !chooses_regions(*input, request)) return planned;
  return keep_if_worth(*input, request, base, std::move(*planned));
}

Result<LeastPlan> least_plan(const ModelProfile& asked, const Machine& as_measured,
                             const PlanRequest& request) {
  const Result<SearchInput> input = search_input(asked, as_measured, request);
  if (!input.ok()) return input.status();
  return least_of(with_base_regions(*input, request), request);
}

}  // namespace elixir::planner
