#pragma once

// What this machine does for a training: bandwidths of the links to its devices and of its memory,
// update rates of elixird and of the devices, and their matrix rate.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/gpu.h"
#include "base/status.h"
#include "client/plan/options.h"
#include "planner/machine_cache.h"

namespace elixir::probe {

// kAuto: kCuda where a GPU shows and no link is to be emulated.
enum class ProbedDevice { kAuto, kCpu, kCuda };

struct ProbeOptions {
  ProbedDevice device = ProbedDevice::kAuto;
  std::optional<HostLink> link = {};  // of each device; the CPU emulates it
  // Devices, and trainers, at the same time. 0: all GPUs; of a machine without, 1.
  uint32_t gpus = 0;
  double g2g_gb_s = 0;  // of collectives, known from elsewhere; 0: measured, or estimated
  // Less than two seconds on two processors, from less memory and fewer rounds: for a trainer that
  // starts. Else several, mostly of elixird's update with 1 to `gpus` trainers.
  bool quick = false;
  // GB of 1e9 chunk bytes a second that so many devices all-gather, GPUs or not. Empty: estimated.
  std::function<Result<double>(uint32_t devices, bool on_gpus)> collectives = {};
  // Told what is measured next.
  std::function<void(const std::string&)> progress = {};
  LibrarySearch cuda_library = cuda_library_search();
};

// Measures, with the host's name and without a date. Call it while nothing else computes, from the
// thread that runs the model: a GPU becomes that thread's current one, and one Device a process is
// all that CUDA's library makes, so a trainer on GPUs takes the cached probe instead
// (planner/machine_cache.h). What is no measurement stands in the notes.
Result<planner::ProbedMachine> probe(const ProbeOptions& options);

// Its machine alone.
Result<planner::Machine> probe_machine(const ProbeOptions& options);

}  // namespace elixir::probe
