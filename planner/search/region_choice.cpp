#include "planner/search/region_choice.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace elixir::planner {
namespace {

constexpr uint32_t kStartShares[] = {4, 2, 1};  // 1/n of the regions
constexpr uint32_t kFirstDistances = 8;         // the first distance is 1/n of the regions

class RegionSearch {
 public:
  RegionSearch(const RegionPlan& base, RegionsMay may, const StepOfRegions& step_s)
      : regions_(base.regions),
        may_(may),
        step_s_(step_s),
        inputs_(base.host_boundaries),
        best_(base) {}

  Result<RegionPlan> run() {
    ELIXIR_RETURN_IF_ERROR(consider({}));
    for (const uint32_t share : kStartShares) {
      const int64_t count = (regions_ + share - 1) / share;
      ELIXIR_RETURN_IF_ERROR(consider({.products = count}));
      ELIXIR_RETURN_IF_ERROR(consider({.all = count}));
      ELIXIR_RETURN_IF_ERROR(consider({.host = count}));
    }
    ELIXIR_RETURN_IF_ERROR(look_around());
    if (may_ == RegionsMay::kAnything && inputs_ == 0) ELIXIR_RETURN_IF_ERROR(try_inputs());
    return best_;
  }

 private:
  // Regions by what they do; the others recompute.
  struct Counts {
    int64_t all = 0, products = 0, host = 0;
  };

  Counts counts() const { return {best_.keep_all, best_.keep_products, best_.host_products}; }

  Status consider(const Counts& counts) {
    const auto [all, products, host] = counts;
    if (all < 0 || products < 0 || host < 0 || all + products + host > regions_) return Status();
    if (may_ == RegionsMay::kSendProducts && all + products > 0) return Status();
    if (may_ == RegionsMay::kKeep && host > 0) return Status();
    const RegionPlan plan{
        .regions = regions_,
        .keep_all = static_cast<uint32_t>(all),
        .keep_products = static_cast<uint32_t>(products),
        .host_products = static_cast<uint32_t>(host),
        .host_boundaries = std::min(inputs_, regions_ - static_cast<uint32_t>(all))};
    if (std::find(seen_.begin(), seen_.end(), plan) != seen_.end()) return Status();
    seen_.push_back(plan);
    const Result<double> step_s = step_s_(plan);
    if (!step_s.ok()) return step_s.status();
    ELIXIR_CHECK(*step_s > 0, "a step of {} s", *step_s);
    if (seen_.size() > 1 && *step_s >= best_s_) return Status();
    best_s_ = *step_s;
    best_ = plan;
    return Status();
  }

  Status look_around() {
    for (uint32_t distance = std::max(1U, regions_ / kFirstDistances); distance > 0;
         distance /= 2) {
      ELIXIR_RETURN_IF_ERROR(look_around(distance));
    }
    return Status();
  }

  // Goes on in the direction that was better.
  Status look_around(int64_t distance) {
    constexpr Counts kDirections[] = {{0, 1, 0},  {1, 0, 0}, {1, -1, 0}, {-1, 1, 0}, {-1, 0, 0},
                                      {0, -1, 0}, {0, 0, 1}, {0, 0, -1}, {0, 1, -1}, {0, -1, 1}};
    for (const Counts& towards : kDirections) {
      RegionPlan from;
      do {
        from = best_;
        const Counts now = counts();
        ELIXIR_RETURN_IF_ERROR(
            consider({now.all + towards.all * distance, now.products + towards.products * distance,
                      now.host + towards.host * distance}));
      } while (best_ != from);
    }
    return Status();
  }

  Status try_inputs() {
    const RegionPlan without = best_;
    const double without_s = best_s_;
    inputs_ = regions_;
    ELIXIR_RETURN_IF_ERROR(consider(counts()));
    if (best_ != without) ELIXIR_RETURN_IF_ERROR(look_around());
    if (best_s_ <= (1 - kRegionGain) * without_s) return Status();
    best_ = without;
    best_s_ = without_s;
    return Status();
  }

  const uint32_t regions_;
  const RegionsMay may_;
  const StepOfRegions& step_s_;
  uint32_t inputs_;  // regions that send their inputs
  std::vector<RegionPlan> seen_;
  RegionPlan best_;
  double best_s_ = 0;
};

}  // namespace

Result<RegionPlan> choose_regions(const RegionPlan& base, RegionsMay may,
                                  const StepOfRegions& step_s) {
  ELIXIR_CHECK(base.regions > 0, "no regions to choose for");
  return RegionSearch(base, may, step_s).run();
}

}  // namespace elixir::planner
