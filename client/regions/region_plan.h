#pragma once

#include <cstdint>
#include <memory>

#include "base/region_plan.h"

namespace elixir {

// The plan for all regions of this process that begin from now on; at first one that keeps nothing.
// A plan for 0 regions that keeps something is for as many as the last pass had, and keeps nothing
// before one is known. Any thread.
void set_region_plan(const RegionPlan& plan);
RegionPlan region_plan();

// What a region with this number in its pass keeps and sends, by the plan.
RegionChoice choice_of_region(uint32_t number);

// A region of a pass, from its first run to its backward, or until nobody can run that any more.
// Regions of one thread count from 0. Once all of them have ended, the pass is over. If it had
// another number of regions than a plan that keeps something, the log says so, once for each plan.
class RegionNumber {
 public:
  RegionNumber();
  ~RegionNumber() { end(); }
  RegionNumber(const RegionNumber&) = delete;
  RegionNumber& operator=(const RegionNumber&) = delete;

  uint32_t value() const { return value_; }
  void end();

 private:
  struct OfThread;
  static const std::shared_ptr<OfThread>& of_thread();

  std::shared_ptr<OfThread> regions_;  // null after end()
  uint32_t value_ = 0;
};

// So many regions, those in regions left out, ran again in backward, in this process. Any thread.
uint64_t regions_run_again();
void note_region_run_again();

}  // namespace elixir
