#pragma once

// The least change of each kind with which a plan fits.

#include <cstdint>
#include <string>

#include "base/status.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

// Each alone would do; 0: none of this kind does.
struct LeastChanges {
  uint64_t host_memory_bytes = 0;  // per node, whole GiB, at most kMostHostMemory
  uint64_t gpu_memory_bytes = 0;   // per GPU, whole GiB, at most kMostGpuMemory
  uint32_t gpus = 0;               // on one node with the same host memory, at most kMostMoreGpus
  bool one_pass = false;           // one backward pass per step, if there are several
};
inline constexpr uint64_t kMostHostMemory = uint64_t{16} << 40;
inline constexpr uint64_t kMostGpuMemory = uint64_t{1} << 40;
inline constexpr uint32_t kMostMoreGpus = 16;

// Nothing is simulated. REQUIRES: make_plan() returns kResourceExhausted for this request.
LeastChanges least_changes(const ModelProfile& profile, const Machine& machine,
                           const PlanRequest& request);

// "98 GiB of host memory, or GPUs of 47 GiB, or 2 GPUs"; "": none of them.
std::string to_text(const LeastChanges& changes);

// make_plan()'s error, with the changes at its end. Other errors than kResourceExhausted stay as
// they are.
Status with_least_changes(const Status& failure, const ModelProfile& profile,
                          const Machine& machine, const PlanRequest& request);

}  // namespace elixir::planner
