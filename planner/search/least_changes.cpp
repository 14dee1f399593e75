#include "planner/search/least_changes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "planner/search/first_that.h"

namespace elixir::planner {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// The least whole GiB of this memory, more than there is, with which there is a plan; 0: none.
uint64_t least_memory(uint64_t Machine::*memory, uint64_t most_bytes, const ModelProfile& profile,
                      Machine machine, const PlanRequest& request) {
  const auto fits = [&](uint32_t gib) {
    machine.*memory = gib * kGiB;
    const Result<LeastPlan> least = least_plan(profile, machine, request);
    return least.ok() && least->fits();
  };
  const auto have = static_cast<uint32_t>(std::min(machine.*memory, most_bytes) / kGiB);
  const auto most = static_cast<uint32_t>(most_bytes / kGiB);
  if (!fits(most)) return 0;
  return first_that(std::min(have + 1, most), most, fits) * kGiB;
}

uint32_t least_gpus(const ModelProfile& profile, Machine machine, const PlanRequest& request) {
  if (machine.nodes > 1) return 0;
  if (machine.g2g_gb_s == 0) machine.g2g_gb_s = g2g_through_host(machine);
  while (machine.gpus < kMostMoreGpus) {
    ++machine.gpus;
    const Result<LeastPlan> least = least_plan(profile, machine, request);
    if (least.ok() && least->fits()) return machine.gpus;
  }
  return 0;
}

// Sums of several passes take memory.
bool fits_in_one_pass(const ModelProfile& profile, const Machine& machine, PlanRequest request) {
  if (request.accumulate == 1) return false;
  request.accumulate = 1;
  const Result<LeastPlan> least = least_plan(profile, machine, request);
  return least.ok() && least->fits();
}

}  // namespace

LeastChanges least_changes(const ModelProfile& profile, const Machine& machine,
                           const PlanRequest& request) {
  return {.host_memory_bytes =
              least_memory(&Machine::host_memory_bytes, kMostHostMemory, profile, machine, request),
          .gpu_memory_bytes =
              least_memory(&Machine::gpu_memory_bytes, kMostGpuMemory, profile, machine, request),
          .gpus = least_gpus(profile, machine, request),
          .one_pass = fits_in_one_pass(profile, machine, request)};
}

std::string to_text(const LeastChanges& changes) {
  std::vector<std::string> any;
  if (changes.host_memory_bytes > 0) {
    any.push_back(fmt::format("{} GiB of host memory", changes.host_memory_bytes / kGiB));
  }
  if (changes.gpu_memory_bytes > 0) {
    any.push_back(fmt::format("GPUs of {} GiB", changes.gpu_memory_bytes / kGiB));
  }
  if (changes.gpus > 0) any.push_back(fmt::format("{} GPUs", changes.gpus));
  if (changes.one_pass) any.emplace_back("one backward pass per step (--accumulate 1)");
  return fmt::format("{}", fmt::join(any, ", or "));
}

Status with_least_changes(const Status& failure, const ModelProfile& profile,
                          const Machine& machine, const PlanRequest& request) {
  if (failure.code() != Code::kResourceExhausted) return failure;
  const std::string changes = to_text(least_changes(profile, machine, request));
  if (changes.empty()) return failure;
  return error(failure.code(), "{}. It fits with {}", failure.message(), changes);
}

}  // namespace elixir::planner
