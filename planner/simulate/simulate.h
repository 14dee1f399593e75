#pragma once

// A discrete-event simulation of training, as client/train/engine runs it. The compute stream, both
// directions of the link with their joint limit, collectives and the update workers each have a
// queue. Copies and workers share host memory. There is no clock, no thread and no randomness:
// equal input gives equal output.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "planner/choices.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

// How long each leg was busy.
struct LegSeconds {
  double compute_s = 0, h2d_s = 0, d2h_s = 0, g2g_s = 0;
  double update_s = 0;  // CPU workers
};

// The traffic of all ranks together.
struct StepTraffic {
  uint64_t h2d_bytes = 0, d2h_bytes = 0, g2g_bytes = 0;
  uint64_t gathers = 0;
};

// One of many equal steps.
struct StepTimes : LegSeconds, StepTraffic {
  double step_s = 0;            // from one step's end to the next's
  double exposed_s = 0;         // step_s - compute_s: the compute stream waits
  Leg busiest = Leg::kCompute;  // the leg that is busy longest
};

// One thing that ran in the step of StepTimes. Times count from the step's begin.
struct StepSpan {
  enum class Row : uint8_t { kCompute, kH2d, kD2h, kG2g, kUpdate, kGpuUpdate };
  Row row = Row::kCompute;
  uint32_t index = 0;  // the operator (kCompute), the parcel of activations, else the chunk
  double begin_s = 0, end_s = 0;
  bool activations = false;
};

// Simulates steps until one is like the one before it (at most kMaxSimulatedSteps). `spans` may be
// null. Returns kInvalidArgument if an operator needs more chunks at once than there are blocks, or
// an index is beyond its vector.
inline constexpr int kMaxSimulatedSteps = 8;
Result<StepTimes> simulate_step(const StepModel& model, std::vector<StepSpan>* spans = nullptr);

}  // namespace elixir::planner
