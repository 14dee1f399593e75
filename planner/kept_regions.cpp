#include "planner/kept_regions.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace elixir::planner {
namespace {

// By operator: bytes that regions hold beyond what they held if none kept anything. A region's
// bytes count behind its forward and in its backward.
std::vector<int64_t> held_bytes(const ModelProfile& profile, const RegionPlan& plan) {
  std::vector<int64_t> held(profile.steps.size() + 1, 0);
  for (uint32_t i = 0; i < profile.regions.size(); ++i) {
    const ProfiledRegion& region = profile.regions[i];
    const auto more = static_cast<int64_t>(region.bytes_of(plan.keep(i)).held) -
                      static_cast<int64_t>(region.bytes_of(Keep::kNothing).held);
    held[region.forward.steps.last + 1] += more;
    held[region.backward.steps.last + 1] -= more;
  }
  for (size_t i = 0; i + 1 < profile.parcels.size(); ++i) {
    const auto bytes = static_cast<int64_t>(profile.parcels[i].bytes);
    const SentParcel& next = profile.parcels[i + 1];
    held[next.put_after + 1] -= bytes;
    held[next.get_before] += bytes;
  }
  for (size_t i = 1; i < held.size(); ++i) held[i] += held[i - 1];
  return held;
}

uint64_t products_bytes(const ProfiledRegion& region) {
  const uint64_t with = region.bytes_of(Keep::kProducts).held;
  return with - std::min(with, region.bytes_of(Keep::kNothing).held);
}

void add_parcels(const RegionPlan& plan, ModelProfile* profile) {
  for (uint32_t i = 0; i < profile->regions.size(); ++i) {
    const ProfiledRegion& region = profile->regions[i];
    const RegionChoice choice = plan.choice(i);
    const uint64_t bytes = (choice.sends_products ? products_bytes(region) : 0) +
                           (choice.sends_boundary ? region.boundary_bytes : 0);
    if (bytes == 0 && !choice.last_sender) continue;
    profile->parcels.push_back({region.forward.steps.last, region.backward.steps.first, bytes});
  }
  for (size_t i = 0; i + 1 < profile->parcels.size(); ++i) {
    // Each tensor begins at a multiple of 256 bytes there.
    constexpr uint64_t kGaps = 16 << 10;
    const uint64_t bytes = profile->parcels[i].bytes;
    if (bytes > 0) profile->sent_bytes += round_up(bytes + kGaps, kActivationSlabBytes);
  }
}

uint64_t plus(uint64_t bytes, int64_t more) {
  const int64_t sum = static_cast<int64_t>(bytes) + more;
  return sum > 0 ? static_cast<uint64_t>(sum) : 0;
}

// A region that keeps something has one peak over all of its operators. Behind the last of them,
// operators without parameters are outside of the region.
void set_peak(const ProfiledRegion::Run& run, uint64_t peak, const std::vector<int64_t>& held,
              std::vector<uint64_t>* curve) {
  const auto [first, last] = run.steps;
  for (uint32_t i = first; i <= last; ++i) (*curve)[i] = plus(run.begin_bytes + peak, held[i]);
  (*curve)[last] = std::max((*curve)[last], plus(run.after_bytes, held[last + 1]));
}

// The next parcel comes while its region's backward begins, before the first operator of that.
void set_arrival(const SentParcel& parcel, const std::vector<int64_t>& held,
                 ModelProfile* profile) {
  if (parcel.get_before == 0) return;
  for (const ProfiledRegion& region : profile->regions) {
    if (region.backward.steps.first != parcel.get_before) continue;
    uint64_t& before = profile->activation_curve[parcel.get_before - 1];
    before = std::max(before, plus(region.backward.begin_bytes, held[parcel.get_before]));
  }
}

void leave_out(Keep keep, std::vector<SecondRunWork>* second_run, ModelProfile* profile) {
  for (SecondRunWork& work : *second_run) {
    const OperatorWork all = work.all();
    OperatorWork& step = profile->step_work[work.step];
    const bool removed = step.remove(keep == Keep::kAll ? all : work.products);
    ELIXIR_CHECK(removed, "operator {} does less than its second run", work.step);
    work.products = {};
    if (keep == Keep::kAll) work.others = {};
    profile->step_flops[work.step] = step.flops();
  }
}

}  // namespace

ModelProfile with_regions(ModelProfile profile, const RegionPlan& plan) {
  if (!plan.keeps() && !plan.sends_any()) return profile;
  ELIXIR_CHECK(plan.regions == profile.regions.size(), "a plan for {} regions, and there are {}",
               plan.regions, profile.regions.size());
  ELIXIR_CHECK(profile.activation_curve.size() == profile.steps.size(),
               "a curve of {} points for {} operators", profile.activation_curve.size(),
               profile.steps.size());
  add_parcels(plan, &profile);
  const std::vector<int64_t> held = held_bytes(profile, plan);
  std::vector<uint64_t>& curve = profile.activation_curve;
  for (size_t i = 0; i < curve.size(); ++i) curve[i] = plus(curve[i], held[i]);
  for (uint32_t i = 0; i < profile.regions.size(); ++i) {
    const Keep keep = plan.keep(i);
    if (keep == Keep::kNothing) continue;
    const RegionBytes& bytes = profile.regions[i].bytes_of(keep);
    const uint64_t least = profile.regions[i].bytes_of(Keep::kNothing).held;
    const RegionChoice choice = plan.choice(i);
    const bool stays = !choice.sends_products || choice.last_sender;
    if (stays) profile.held_bytes += std::max(bytes.held, least) - least;
    set_peak(profile.regions[i].forward, bytes.forward_peak, held, &curve);
    set_peak(profile.regions[i].backward, bytes.backward_peak, held, &curve);
    leave_out(keep, &profile.regions[i].second_run, &profile);
  }
  for (const SentParcel& parcel : profile.parcels) set_arrival(parcel, held, &profile);
  profile.activation_bytes = *std::max_element(curve.begin(), curve.end());
  double allocated = 0;
  for (size_t i = 0; i < curve.size(); ++i) {
    const auto kept =
        static_cast<double>(std::clamp<int64_t>(held[i], 0, static_cast<int64_t>(curve[i])));
    const double others = static_cast<double>(curve[i]) - kept;
    allocated = std::max(allocated, kActivationFactor * others + kKeptFactor * kept);
  }
  profile.allocated_bytes = static_cast<uint64_t>(allocated);
  return profile;
}

}  // namespace elixir::planner
