#include "planner/search/region_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace elixir::planner {
namespace {

constexpr uint32_t kStartShares[] = {4, 2, 1};  // 1/n of the regions
constexpr uint32_t kFirstDistances = 8;         // the first distance is 1/n of the regions

class RegionSearch {
 public:
  RegionSearch(uint32_t regions, const StepOfRegions& step_s)
      : regions_(regions), step_s_(step_s), best_{.regions = regions} {}

  Result<RegionPlan> run() {
    ELIXIR_RETURN_IF_ERROR(consider(0, 0));
    for (const uint32_t share : kStartShares) {
      const int64_t count = (regions_ + share - 1) / share;
      ELIXIR_RETURN_IF_ERROR(consider(0, count));
      ELIXIR_RETURN_IF_ERROR(consider(count, 0));
    }
    for (uint32_t distance = std::max(1U, regions_ / kFirstDistances); distance > 0;
         distance /= 2) {
      ELIXIR_RETURN_IF_ERROR(look_around(distance));
    }
    return best_;
  }

 private:
  Status consider(int64_t all, int64_t products) {
    if (all < 0 || products < 0 || all + products > regions_) return Status();
    const RegionPlan plan{.regions = regions_,
                          .keep_all = static_cast<uint32_t>(all),
                          .keep_products = static_cast<uint32_t>(products)};
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

  // Goes on in the direction that was better.
  Status look_around(int64_t distance) {
    constexpr std::pair<int, int> kDirections[] = {{0, 1},  {1, 0},  {1, -1},
                                                   {-1, 1}, {-1, 0}, {0, -1}};
    for (const auto& [all, products] : kDirections) {
      RegionPlan from;
      do {
        from = best_;
        ELIXIR_RETURN_IF_ERROR(consider(int64_t{from.keep_all} + all * distance,
                                        int64_t{from.keep_products} + products * distance));
      } while (best_ != from);
    }
    return Status();
  }

  const uint32_t regions_;
  const StepOfRegions& step_s_;
  std::vector<RegionPlan> seen_;
  RegionPlan best_;
  double best_s_ = 0;
};

}  // namespace

Result<RegionPlan> choose_regions(uint32_t regions, const StepOfRegions& step_s) {
  ELIXIR_CHECK(regions > 0, "no regions to choose for");
  return RegionSearch(regions, step_s).run();
}

}  // namespace elixir::planner
