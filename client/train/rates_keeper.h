#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/machine_load.h"
#include "base/status.h"
#include "client/plan/plan_check.h"

namespace elixir {

// Compares a training with its plan, says so in the log, and keeps what it measured of rates that
// were off, if nothing else ran on the node. It is for one rank of each node; the others have
// none.
class RatesKeeper {
 public:
  // Other work than this training's may use so much of the processors.
  static constexpr double kQuietShare = 0.1;

  // `ranks`: of this node, which are taken to use the processors alike. `elixird`: its process; 0:
  // not known, and then nothing is kept.
  RatesKeeper(planner::Plan plan, uint32_t ranks, pid_t elixird)
      : check_(std::move(plan)), ranks_(ranks), elixird_(elixird) {}

  // Call it for each step, in order, as PlanCheck::add().
  void add(uint32_t step, const Roofline& measured, uint64_t gpu_bytes);

 private:
  void keep(const planner::MeasuredStep& measured);
  // OK: the rates are kept.
  Status why_not(const std::vector<planner::LegOff>& off);

  PlanCheck check_;
  const uint32_t ranks_;
  const pid_t elixird_;
  std::optional<OthersLoad> others_;  // from PlanCheck::kFirstStep on
};

}  // namespace elixir
