#include "planner/report/measured_step.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace elixir::planner {
namespace {

double seconds_of(const LegSeconds& legs, Leg leg) {
  switch (leg) {
    case Leg::kCompute:
      return legs.compute_s;
    case Leg::kH2d:
      return legs.h2d_s;
    case Leg::kD2h:
      return legs.d2h_s;
    case Leg::kG2g:
      return legs.g2g_s;
    case Leg::kUpdate:
      return legs.update_s;
  }
  ELIXIR_CHECK(false, "leg {}", static_cast<int>(leg));
}

void divide(double GpuRates::*rate, double ratio, Machine& machine) {
  machine.*rate /= ratio;
  for (GpuRates& rates : machine.by_gpus) rates.*rate /= ratio;
}

void divide_compute(double ratio, Machine& machine) {
  machine.gpu_tflops /= ratio;
  machine.gpu_fp32_tflops /= ratio;
  machine.gpu_memory_gb_s /= ratio;
  machine.gpu_launch_us *= ratio;
  for (AttentionRate& rate : machine.gpu_attention_tflops) {
    rate.forward_tflops /= ratio;
    rate.backward_tflops /= ratio;
  }
}

void divide_update(double ratio, Machine& machine) {
  divide(&GpuRates::cpu_update_gparam_s, ratio, machine);
  machine.cpu_update_beside_copies_gparam_s /= ratio;
  for (double& rate : machine.cpu_update_gparam_s_by_trainers) rate /= ratio;
}

}  // namespace

std::vector<LegOff> legs_off(const Plan& plan, const MeasuredStep& measured) {
  std::vector<LegOff> off;
  for (const Leg leg : kLegs) {
    const double planned_s = seconds_of(plan.predicted, leg);
    const double measured_s = seconds_of(measured.legs, leg);
    const bool counts = planned_s >= kLeastLegShare * plan.predicted.step_s &&
                        measured_s >= kLeastLegShare * measured.step_s && planned_s > 0 &&
                        measured_s > 0;
    if (leg == Leg::kG2g || !counts) continue;
    const double ratio = measured_s / planned_s;
    if (ratio > 1 + kRateOff || ratio < 1 / (1 + kRateOff)) off.push_back({leg, ratio});
  }
  return off;
}

std::vector<LegOff> steady_of(const std::vector<LegOff>& off, const MeasuredStep& measured) {
  std::vector<LegOff> steady;
  for (const LegOff& one : off) {
    const auto found = std::find(measured.steady.begin(), measured.steady.end(), one.leg);
    if (found != measured.steady.end()) steady.push_back(one);
  }
  return steady;
}

const char* rates_of(Leg leg) {
  switch (leg) {
    case Leg::kCompute:
      return "gpu_tflops, gpu_memory_gb_s, gpu_attention_tflops, gpu_launch_us";
    case Leg::kH2d:
      return "h2d_gb_s";
    case Leg::kD2h:
      return "d2h_gb_s";
    case Leg::kG2g:
      return "g2g_gb_s";
    case Leg::kUpdate:
      return "cpu_update_gparam_s";
  }
  ELIXIR_CHECK(false, "leg {}", static_cast<int>(leg));
}

Machine corrected(Machine machine, const std::vector<LegOff>& off) {
  double joint = 1;
  for (const auto& [leg, measured] : off) {
    const double ratio = std::clamp(measured, 1 / kMostOff, kMostOff);
    switch (leg) {
      case Leg::kCompute:
        divide_compute(ratio, machine);
        break;
      case Leg::kH2d:
      case Leg::kD2h:
        divide(leg == Leg::kH2d ? &GpuRates::h2d_gb_s : &GpuRates::d2h_gb_s, ratio, machine);
        if (std::abs(std::log(ratio)) > std::abs(std::log(joint))) joint = ratio;
        break;
      case Leg::kG2g:
        break;
      case Leg::kUpdate:
        divide_update(ratio, machine);
        break;
    }
  }
  divide(&GpuRates::joint_gb_s, joint, machine);
  return machine;
}

}  // namespace elixir::planner
