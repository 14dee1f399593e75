#pragma once

// Measures this machine for a training: the bandwidths of its memory and of the links to its
// devices, the update rates of elixird and of the devices, and the devices' matrix rate.

#include <torch/version.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/gpu.h"
#include "base/status.h"
#include "client/plan/options.h"
#include "planner/machine_cache.h"

namespace elixir::probe {

// kAuto: kCuda if a GPU is visible and no link is to be emulated.
enum class ProbedDevice { kAuto, kCpu, kCuda };

struct ProbeOptions {
  ProbedDevice device = ProbedDevice::kAuto;
  std::optional<HostLink> link = {};  // each device's; the CPU emulates it
  // The number of devices, and of trainers, at the same time. 0: all GPUs, or 1 without a GPU.
  uint32_t gpus = 0;
  double g2g_gb_s = 0;  // rate of collectives, if known; 0: measured or estimated
  // true: uses less memory and fewer rounds, for a trainer that starts (first_probe.h). It takes
  // less than two seconds on two processors without a GPU. false: takes several seconds, mostly for
  // elixird's update with 1 to `gpus` trainers.
  bool quick = false;
  // Measures the rate at which `devices` devices all-gather, in GB of 1e9 chunk bytes per second.
  // Empty: the rate is estimated.
  std::function<Result<double>(uint32_t devices, bool on_gpus)> collectives = {};
  // Called with a description of the next measurement.
  std::function<void(const std::string&)> progress = {};
  LibrarySearch cuda_library = cuda_library_search(TORCH_VERSION_MINOR);
};

// Measures. The result has the host's name and no date. Its notes say which values are not
// measured. Call it while nothing else computes, from the thread that runs the model, because a GPU
// becomes that thread's current one. CUDA's library makes only one Device per process. So a trainer
// on GPUs uses the cached probe instead (planner/machine_cache.h).
Result<planner::ProbedMachine> probe(const ProbeOptions& options);

// The machine that probe() measures, without the rest.
Result<planner::Machine> probe_machine(const ProbeOptions& options);

}  // namespace elixir::probe
