#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

struct TimeAtMemory {
  uint64_t gpu_memory_bytes = 0;
  double step_s = 0;
};

inline constexpr int kPictureSizes = 32;  // sizes of GPU memory to plan for

// Steps with kPictureSizes sizes of GPU memory, evenly spaced from a sixteenth of the machine's to
// twice it. Sizes with which nothing fits are left out. Returns make_plan()'s errors except
// kResourceExhausted.
Result<std::vector<TimeAtMemory>> times_over_memory(const ModelProfile& profile,
                                                    const Machine& machine,
                                                    const PlanRequest& request);

// An SVG of step time over GPU memory. The machine's own memory is marked, and each point has a
// title.
std::string time_picture(const std::vector<TimeAtMemory>& times, const std::string& model,
                         uint64_t gpu_memory_bytes);

}  // namespace elixir::planner
