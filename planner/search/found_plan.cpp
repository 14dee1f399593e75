// What Search tells of the best that it found.

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "planner/search/search.h"
#include "planner/search/step_of.h"

namespace elixir::planner {
namespace {

// The same step with one leg twice as fast, and host memory for it.
StepModel with_faster(StepModel step, Leg leg) {
  StepRates& rates = step.rates;
  switch (leg) {
    case Leg::kCompute:
      for (StepOperator& op : step.operators) op.compute_s /= 2;
      rates.gpu_update_numel *= 2;
      break;
    case Leg::kH2d:
    case Leg::kD2h: {
      double& rate = leg == Leg::kH2d ? rates.h2d_bytes : rates.d2h_bytes;
      if (rates.joint_bytes > 0) rates.joint_bytes += rate;
      if (rates.dram_bytes > 0) rates.dram_bytes += rate;
      rate *= 2;
      break;
    }
    case Leg::kG2g:
      rates.g2g_bytes *= 2;
      break;
    case Leg::kUpdate:
      if (rates.dram_bytes > 0) rates.dram_bytes += step.update_bytes * rates.cpu_update_numel;
      rates.cpu_update_numel *= 2;
      break;
  }
  return step;
}

}  // namespace

Status Search::tell_gains(const StepModel& once, Plan* plan) const {
  for (const Leg leg : kLegs) {
    const Result<StepTimes> times = simulate(with_faster(once, leg));
    if (!times.ok()) return times.status();
    plan->gains_s[static_cast<size_t>(leg)] = std::max(0.0, plan->predicted.step_s - times->step_s);
  }
  const auto most = std::max_element(plan->gains_s.begin(), plan->gains_s.end());
  plan->binding =
      *most > 0 ? static_cast<Leg>(most - plan->gains_s.begin()) : plan->predicted.busiest;
  const bool chosen = plan->update == UpdateMode::kDeferred || plan->update == UpdateMode::kEarly;
  if (request_.policy != Policy::kElixir || !chosen) return Status();
  StepModel immediate = once;
  immediate.runtime.update = UpdateMode::kImmediate;
  const Result<StepTimes> times = simulate(immediate);
  if (!times.ok()) return times.status();
  plan->immediate_step_s = times->step_s;
  return Status();
}

Result<PlannedStep> Search::finish() const {
  const ModelProfile& profile = setting_.profile;
  const Machine& machine = setting_.machine;
  const Candidate& chosen = best_.candidate;
  ELIXIR_CHECK(best_.times.step_s < std::numeric_limits<double>::infinity(),
               "nothing has been simulated");
  Plan plan;
  plan.model = profile.model;
  for (const ProfiledParameter& param : profile.params) {
    plan.order.push_back({param.name, param.shared});
  }
  plan.update = update_of(chosen);
  plan.numel = profile.total_numel();
  plan.frozen_numel = plan.numel - profile.trained_numel();
  plan.gpus = machine.gpus;
  plan.nodes = machine.nodes;
  plan.accumulate = request_.accumulate;
  plan.scaled_from_gpus = machine.scaled_from_gpus;
  plan.assumed_g2g = machine.assumed_g2g;
  plan.tokens = profile.tokens;
  plan.checkpointed = !profile.checkpoint_regions.empty();
  plan.type = profile.type;
  plan.chunk_numel = setting_.packing.chunk_numel;
  plan.long_numel = long_numel(chosen);
  plan.n_chunks = setting_.packing.total_chunks();
  plan.waste_ratio = setting_.packing.waste_ratio();
  plan.chosen = chosen;
  plan.placement = placements_of(setting_, chosen);
  plan.equation_stride = equation_stride(machine);
  plan.swing = swing_;
  plan.u_allowed_bytes = allowed_bytes_;
  plan.benefit_i = benefits_.i;
  plan.benefit_j = benefits_.j;
  plan.rcache_first = benefits_.rcache_first();
  plan.predicted = best_.times;
  plan.bytes = bytes_of(setting_, chosen);
  plan.spare_bytes = spare_bytes_of(setting_, chosen);
  plan.capacity_bytes = machine.gpu_memory_bytes;
  plan.curve_bytes = thinned_curve(profile.activation_curve, kMostCurvePoints);
  const double passes_s = best_.times.step_s / request_.accumulate;
  plan.predicted_tflops = 1e-12 * setting_.compute.flops / passes_s;
  plan.compute = setting_.compute.parts;
  const double peak = peak_tflops(machine, profile.dtype_bytes());
  plan.predicted_mfu = 1e-12 * 3 * setting_.compute.forward_flops / passes_s / peak;
  const StepModel once = step_of(setting_, chosen, runtime_of(chosen));
  ELIXIR_RETURN_IF_ERROR(tell_gains(once, &plan));
  return PlannedStep{plan, setting_.packing,
                     repeated(once, std::min(request_.accumulate, kMostMicroSteps)),
                     machine.gpu_memory_bytes};
}

}  // namespace elixir::planner
