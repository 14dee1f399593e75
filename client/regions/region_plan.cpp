#include "client/regions/region_plan.h"

#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"

namespace elixir {
namespace {

struct CurrentPlan {
  Mutex mutex;
  RegionPlan plan ELIXIR_GUARDED_BY(mutex);
  uint32_t last_pass ELIXIR_GUARDED_BY(mutex) = 0;  // regions of the last pass; 0: none was over
  bool said ELIXIR_GUARDED_BY(mutex) = false;       // that a pass has another number of them
};

CurrentPlan& current() {
  static auto* const plan = new CurrentPlan;  // backward's threads may outlive main()
  return *plan;
}

void note_pass(uint32_t regions) {
  RegionPlan plan;
  {
    const MutexLock lock(current().mutex);
    current().last_pass = regions;
    plan = current().plan;
    const bool open = plan.regions == 0 || plan.regions == kMostRegions;
    if (!(plan.keeps() || plan.sends_any()) || open || plan.regions == regions) return;
    if (std::exchange(current().said, true)) return;
  }
  log_warn("regions_differ",
           "planned={} regions={} effect=\"those behind the planned ones are computed again\" "
           "why=\"a pass calls elixir::checkpoint() another number of times than the plan's\"",
           plan.regions, regions);
}

// Relaxed: it orders nothing.
std::atomic<uint64_t>& run_again() {
  static std::atomic<uint64_t> count{0};
  return count;
}

}  // namespace

void set_region_plan(const RegionPlan& plan) {
  const MutexLock lock(current().mutex);
  current().plan = plan;
  current().said = false;
}

RegionPlan region_plan() {
  const MutexLock lock(current().mutex);
  return current().plan;
}

RegionChoice choice_of_region(uint32_t number) {
  const MutexLock lock(current().mutex);
  RegionPlan plan = current().plan;
  if (plan.regions == 0) plan.regions = current().last_pass;
  return plan.choice(number);
}

struct RegionNumber::OfThread {
  std::atomic<uint32_t> open{0};
  std::atomic<uint32_t> highest{0};  // in this pass, plus 1
};

// Backward's threads end regions of the thread that began them.
const std::shared_ptr<RegionNumber::OfThread>& RegionNumber::of_thread() {
  thread_local const auto regions = std::make_shared<OfThread>();
  return regions;
}

// Relaxed: the counts order nothing else, and one thread begins regions.
RegionNumber::RegionNumber() : regions_(of_thread()) {
  value_ = regions_->open.fetch_add(1, std::memory_order_relaxed);
  if (value_ >= regions_->highest.load(std::memory_order_relaxed)) {
    regions_->highest.store(value_ + 1, std::memory_order_relaxed);
  }
}

void RegionNumber::end() {
  const std::shared_ptr<OfThread> regions = std::exchange(regions_, nullptr);
  if (!regions) return;
  const uint32_t before = regions->open.fetch_sub(1, std::memory_order_relaxed);
  ELIXIR_CHECK(before > 0, "region {} ends, and its thread has none", value_);
  if (before == 1) note_pass(regions->highest.exchange(0, std::memory_order_relaxed));
}

uint64_t regions_run_again() { return run_again().load(std::memory_order_relaxed); }

void note_region_run_again() { run_again().fetch_add(1, std::memory_order_relaxed); }

}  // namespace elixir
