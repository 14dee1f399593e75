#pragma once

// A trainer without a model, over an emulated link. Each operator takes its time, reads the chunk
// that it needs and brings a gradient of it. Every stride-th chunk in the order of use swings.

#include <cstdint>
#include <string>

#include "client/plan/options.h"
#include "planner/simulate/step_model.h"

namespace elixir::test {

struct PacedTraining {
  HostLink link;
  uint32_t stride = 0;  // 0: no chunk swings
  uint32_t chunks = 12;
  uint64_t chunk_numel = uint64_t{1} << 19;
  double operator_us = 1000;  // per operator; each reads one chunk, in forward and in backward

  uint32_t swinging() const { return stride == 0 ? 0 : chunks / stride; }
  // The chunk that forward's i-th operator and backward's i-th last operator read. Swing chunks
  // have the last numbers.
  uint32_t chunk_at(uint32_t i) const;
};

struct PacedSteps {
  std::string wrong;  // empty: nothing is wrong
  double step_s = 0;  // the median, from post to post
  double cpu_update_numel_s = 0;
};

// Runs deferred steps of one rank, in BF16. REQUIRES: elixird's folder is in the environment
// (with_elixird.h).
PacedSteps train_paced(const PacedTraining& of);

// This training as the planner's simulator models it.
planner::StepModel step_model_of(const PacedTraining& of, const PacedSteps& measured);

// The longest time of a small gather while four long chunks swing in one step. NaN: it failed.
double longest_gather_s(const HostLink& link);

// Elements per second that one thread of this process updates, as a PacedDevice does.
double device_update_numel_s(uint64_t numel);

}  // namespace elixir::test
