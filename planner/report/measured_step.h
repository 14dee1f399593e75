#pragma once

#include <cstdint>
#include <vector>

#include "planner/choices.h"
#include "planner/machine.h"
#include "planner/plan/plan.h"
#include "planner/simulate/simulate.h"

namespace elixir::planner {

// A step of a training, on one rank, as the median over several.
struct MeasuredStep {
  double step_s = 0;
  LegSeconds legs = {};
  std::vector<Leg> steady = {};  // those that took nearly as long in all of the steps
  uint64_t gpu_bytes = 0;        // the peak; 0: not known
};

// A leg whose rate was not the machine's: it was busy `ratio` times as long as planned.
struct LegOff {
  Leg leg = Leg::kCompute;
  double ratio = 1;
};

// Differences up to this share are expected. A leg that takes a small part of the step is noise.
inline constexpr double kRateOff = 0.15, kLeastLegShare = 0.05;
// The legs that were off by more than kRateOff, either way, in the order of kLegs. Without those
// that are planned, or measured, to take less than kLeastLegShare of the step, and without
// collectives, which are not measured.
std::vector<LegOff> legs_off(const Plan& plan, const MeasuredStep& measured);

// The ones of them that were steady: what varies, as with batches of unlike lengths, says nothing
// of a rate.
std::vector<LegOff> steady_of(const std::vector<LegOff>& off, const MeasuredStep& measured);

// The names of a leg's rates in machine files, "h2d_gb_s".
const char* rates_of(Leg leg);

// The machine with the rates of these legs as they were measured: each is divided by its ratio,
// which is taken to be from 1 / kMostOff to kMostOff. A joint limit of both directions changes with
// the direction that was off more.
inline constexpr double kMostOff = 5;
Machine corrected(Machine machine, const std::vector<LegOff>& off);

}  // namespace elixir::planner
