#pragma once

// A discrete-event simulation of training: the compute stream, both directions of the link with
// their joint limit, collectives, and the update workers, each with a queue of its own, as
// client/train/engine runs them; copies and workers share host memory. No clock, no thread, no
// randomness: equal input, equal output.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "planner/choices.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

// For so long each leg was busy.
struct LegSeconds {
  double compute_s = 0, h2d_s = 0, d2h_s = 0, g2g_s = 0;
  double update_s = 0;  // CPU workers
};

// What was moved, of all ranks together.
struct StepTraffic {
  uint64_t h2d_bytes = 0, d2h_bytes = 0, g2g_bytes = 0;
  uint64_t gathers = 0;
};

// One step of many alike.
struct StepTimes : LegSeconds, StepTraffic {
  double step_s = 0;            // from one step's end to the next's
  double exposed_s = 0;         // step_s less compute_s: the compute stream waited
  Leg busiest = Leg::kCompute;  // the leg that is busy longest
};

// What ran when, in the step that StepTimes tells of; from its begin.
struct StepSpan {
  enum class Row : uint8_t { kCompute, kH2d, kD2h, kG2g, kUpdate, kGpuUpdate };
  Row row = Row::kCompute;
  uint32_t index = 0;  // the operator (kCompute), else the chunk
  double begin_s = 0, end_s = 0;
};

// Simulates steps until one is like the one before it (at most kMaxSimulatedSteps).
// kInvalidArgument where an operator needs more chunks at once than there are blocks, or an index
// is beyond its vector. `spans` may be null.
inline constexpr int kMaxSimulatedSteps = 8;
Result<StepTimes> simulate_step(const StepModel& model, std::vector<StepSpan>* spans = nullptr);

}  // namespace elixir::planner
