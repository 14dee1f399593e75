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

inline constexpr int kPictureSizes = 32;  // that are planned for

// Steps with kPictureSizes sizes of GPU memory, evenly from a sixteenth of the machine's to twice
// it; those with which nothing fits are left out. Errors as make_plan()'s but kResourceExhausted.
Result<std::vector<TimeAtMemory>> times_over_memory(const ModelProfile& profile,
                                                    const Machine& machine,
                                                    const PlanRequest& request);

// An SVG: step time over GPU memory, the machine's own marked, each point with a title.
std::string time_picture(const std::vector<TimeAtMemory>& times, const std::string& model,
                         uint64_t gpu_memory_bytes);

}  // namespace elixir::planner
