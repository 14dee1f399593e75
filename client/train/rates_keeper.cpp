#include "client/train/rates_keeper.h"

#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "client/probe/first_probe.h"
#include "planner/report/plan_text.h"

namespace elixir {
namespace {

constexpr char kNextPlan[] = "the next plan uses the rates that were measured before";

}  // namespace

void RatesKeeper::add(uint32_t step, const Roofline& measured, uint64_t gpu_bytes) {
  if (step > PlanCheck::kLastStep) return;
  if (!others_ && step >= PlanCheck::kFirstStep) others_.emplace(ranks_, elixird_);
  const auto whole = check_.add(step, measured, gpu_bytes);
  if (!whole) return;
  log_info("plan_check", "{}", planner::measured_text(check_.plan(), *whole));
  keep(*whole);
}

void RatesKeeper::keep(const planner::MeasuredStep& measured) {
  const planner::Plan& plan = check_.plan();
  const std::vector<planner::LegOff> off = planner::legs_off(plan, measured);
  if (plan.measured_rates.empty() || off.empty()) return;
  const Status kept = why_not(planner::steady_of(off, measured));
  if (kept.ok()) {
    log_info("rates_kept",
             "effect=\"the next plan uses the measured rates\" undo=\"elixirctl probe "
             "--forget\"");
  } else {
    log_info("rates_not_kept", "reason=\"{}\" effect=\"{}\"", kept.message(), kNextPlan);
  }
}

Status RatesKeeper::why_not(const std::vector<planner::LegOff>& off) {
  ELIXIR_CHECK(others_.has_value(), "steps {} to {} were not measured", PlanCheck::kFirstStep,
               PlanCheck::kLastStep);
  if (off.empty()) {
    return error(Code::kUnavailable, "what was off took unlike times in these steps");
  }
  if (elixird_ <= 0) {
    return error(Code::kUnavailable,
                 "elixird is in another pid namespace, and its work looks like that of others");
  }
  const MachineLoad others = others_->look();
  if (others.busy > kQuietShare * others.processors) {
    return error(Code::kUnavailable, "other work used {:.1f} of {:.0f} processors", others.busy,
                 others.processors);
  }
  const planner::Plan& plan = check_.plan();
  const Result<planner::ProbedMachine> planned_with =
      planner::probed_from_json(plan.measured_rates);
  if (!planned_with.ok()) return planned_with.status();
  return probe::correct_rates(*planned_with, off, plan.model);
}

}  // namespace elixir
