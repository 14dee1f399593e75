#include "planner/step_compute.h"

#include <numeric>

#include "base/check.h"

namespace elixir::planner {
namespace {

constexpr double kForwardFlops = 2;   // for each parameter and token: multiply and add
constexpr double kBackwardFlops = 4;  // gradients of inputs and of weights

bool checkpointed(const ModelProfile& profile) { return !profile.checkpoint_regions.empty(); }

double parameters_times_tokens(const ModelProfile& profile) {
  return static_cast<double>(profile.total_numel()) * static_cast<double>(profile.tokens);
}

// By operator, in proportion to the parameters that it reads, forward and backward each.
std::vector<double> nominal_flops(const ModelProfile& profile) {
  const uint32_t backward = profile.backward_first();
  std::vector<double> flops(profile.steps.size());
  const auto spread = [&](uint32_t first, uint32_t last, double pass_flops) {
    double numel = 0;
    for (uint32_t i = first; i < last; ++i) {
      for (const uint32_t param : profile.steps[i]) {
        flops[i] += static_cast<double>(profile.params[param].numel);
      }
      numel += flops[i];
    }
    for (uint32_t i = first; i < last; ++i) {
      flops[i] = numel > 0 ? flops[i] / numel * pass_flops : pass_flops / (last - first);
    }
  };
  const double each = parameters_times_tokens(profile);
  spread(0, backward, kForwardFlops * each);
  spread(backward, static_cast<uint32_t>(profile.steps.size()),
         (kBackwardFlops + (checkpointed(profile) ? kForwardFlops : 0)) * each);
  return flops;
}

double sum(const std::vector<double>& values, uint32_t count) {
  return std::accumulate(values.begin(), values.begin() + count, 0.0);
}

}  // namespace

StepCompute step_compute(const ModelProfile& profile, const Machine& machine,
                         ComputeMeasure measure) {
  ELIXIR_CHECK(profile.tokens > 0, "a step without tokens");
  const bool paper = measure == ComputeMeasure::kPaper;
  const bool counted = !paper && !profile.step_flops.empty();
  const std::vector<double> flops = counted ? profile.step_flops : nominal_flops(profile);
  StepCompute compute;
  compute.flops = sum(flops, static_cast<uint32_t>(flops.size()));
  compute.forward_flops = sum(flops, profile.backward_first());
  if (!paper && !profile.step_work.empty()) {
    compute.parts = ComputeParts();
    ELIXIR_CHECK(profile.step_work.size() == profile.steps.size(), "{} operators of {} described",
                 profile.step_work.size(), profile.steps.size());
    for (const ComputeParts& part : compute_parts(profile, machine)) {
      compute.seconds.push_back(part.total());
      compute.parts->add(part);
    }
    return compute;
  }
  const double products_s = compute.flops / (1e12 * matrix_tflops(machine, profile.dtype_bytes()));
  const double numel = static_cast<double>(profile.total_numel());
  const double own_s = paper ? 1e-12 * machine.paper_parameter_ps * numel : 0;
  for (const double each : flops) {
    const double share = compute.flops > 0 ? each / compute.flops : 0;
    compute.seconds.push_back(share * (products_s + own_s));
  }
  return compute;
}

}  // namespace elixir::planner
