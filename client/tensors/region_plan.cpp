#include "client/tensors/region_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutex.h"

namespace elixir {
namespace {

struct CurrentPlan {
  Mutex mutex;
  RegionPlan plan ELIXIR_GUARDED_BY(mutex);
};

CurrentPlan& current() {
  static auto* const plan = new CurrentPlan;  // backward's threads may outlive main()
  return *plan;
}

// Backward's threads end regions of the thread that began them.
const std::shared_ptr<std::atomic<uint32_t>>& regions_of_thread() {
  thread_local const auto count = std::make_shared<std::atomic<uint32_t>>(0);
  return count;
}

}  // namespace

Keep RegionPlan::keep(uint32_t region) const {
  if (region >= regions) return Keep::kNothing;
  const uint32_t behind = regions - 1 - region;
  if (behind < keep_all) return Keep::kAll;
  return behind - keep_all < keep_products ? Keep::kProducts : Keep::kNothing;
}

void set_region_plan(const RegionPlan& plan) {
  const MutexLock lock(current().mutex);
  current().plan = plan;
}

RegionPlan region_plan() {
  const MutexLock lock(current().mutex);
  return current().plan;
}

// Relaxed: the count orders nothing else.
RegionNumber::RegionNumber()
    : count_(regions_of_thread()), value_(count_->fetch_add(1, std::memory_order_relaxed)) {}

void RegionNumber::end() {
  if (!count_) return;
  const uint32_t before = count_->fetch_sub(1, std::memory_order_relaxed);
  ELIXIR_CHECK(before > 0, "region {} ends, and its thread has none", value_);
  count_.reset();
}

}  // namespace elixir
