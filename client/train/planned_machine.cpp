#include "client/train/planned_machine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/units.h"
#include "client/probe/first_probe.h"
#include "client/probe/hardware.h"
#include "client/torch_device/cuda_library.h"
#include "client/torch_device/make_device.h"
#include "client/train/agree_machine.h"

namespace elixir {
namespace {

std::vector<CudaDeviceInfo> present_gpus() {
  const Result<CudaLibrary*> library = load_cuda_library();
  return library.ok() ? (*library)->devices().devices : std::vector<CudaDeviceInfo>();
}

Result<probe::KnownMachine> known_machine(const Options& options,
                                          const LaunchEnvironment& environment) {
  const bool on_gpus = !on_cpu(options);
  probe::FirstProbe first{.hardware = probe::hardware_of(on_gpus),
                          .on_gpus = on_gpus,
                          .devices = environment.local_world_size,
                          .ranks = environment.local_world_size,
                          .job = environment.job};
  // A starter may show each rank its own GPU alone.
  if (on_gpus) {
    const auto visible = static_cast<uint32_t>(present_gpus().size());
    first.devices = std::min(first.devices, std::max(visible, 1u));
  }
  return probe::load_or_measure(first);
}

// The slowest of several nodes is none of them, what is emulated is not this machine's, and what
// was scaled says nothing of the number of devices that was measured.
bool may_be_corrected(const probe::KnownMachine& known, const planner::Machine& planned,
                      const Options& options) {
  return known.correctable && planned.nodes == 1 && planned.scaled_from_gpus == 0 &&
         !options.link && options.operator_us == 0;
}

// The file may be of other GPUs: no more is planned with than the smallest of those here has.
void keep_to_present_gpus(const LaunchEnvironment& environment, planner::Machine* machine) {
  const std::vector<CudaDeviceInfo> devices = present_gpus();
  const auto smallest = std::min_element(devices.begin(), devices.end(),
                                         [](const CudaDeviceInfo& a, const CudaDeviceInfo& b) {
                                           return a.memory_bytes < b.memory_bytes;
                                         });
  if (smallest == devices.end() || smallest->memory_bytes >= machine->gpu_memory_bytes) return;
  if (environment.rank == 0) {
    log_warn("machine_file_of_another_gpu", "has=\"{}\" gpu=\"{}, {}\" remedy=\"elixirctl probe\"",
             format_bytes(machine->gpu_memory_bytes), smallest->name,
             format_bytes(smallest->memory_bytes));
  }
  machine->gpu_memory_bytes = smallest->memory_bytes;
}

Result<planner::Machine> machine_of_node(planner::Machine node, const Options& options,
                                         const LaunchEnvironment& environment) {
  const uint32_t ranks_here = environment.local_world_size;
  if (options.link) {  // before collectives are estimated from it
    const double gpus = node.gpus;
    node.by_gpus.clear();
    node.h2d_gb_s = gpus * options.link->h2d_gb_s;
    node.d2h_gb_s = gpus * options.link->d2h_gb_s;
    node.joint_gb_s = gpus * options.link->joint_gb_s;
  }
  Result<planner::Machine> scaled = planner::with_gpus(node, ranks_here, ranks_here);
  if (!scaled.ok()) return scaled;
  planner::Machine& machine = *scaled;
  if (!on_cpu(options)) keep_to_present_gpus(environment, &machine);
  if (const uint64_t limit_bytes = options.device_memory_bytes; limit_bytes != 0) {
    const uint64_t plannable_bytes =
        on_cpu(options) ? limit_bytes : planner::plannable_of_limit(limit_bytes);
    // A limit holds what torch's allocator gives; the rest of the GPU holds the overhead.
    if (on_cpu(options) || plannable_bytes + machine.overhead_bytes <= machine.gpu_memory_bytes) {
      machine.gpu_memory_bytes = plannable_bytes;
      machine.overhead_bytes = 0;
    }
  }
  // What elixird may take at most, not what is free now: ranks must not differ. elixird has the
  // last word.
  machine.host_memory_bytes = memory_capacity().available_bytes;
  return scaled;
}

}  // namespace

bool on_cpu(const Options& options) { return parse_device(options.device).is_cpu(); }

Result<PlannedMachine> planned_machine(const Options& options,
                                       const LaunchEnvironment& environment) {
  Result<probe::KnownMachine> known = known_machine(options, environment);
  Result<planner::Machine> machine = agree_machine(
      known.ok() ? machine_of_node(known->probed.machine, options, environment) : known.status(),
      environment);
  if (!machine.ok()) return machine.status();
  const bool correctable = may_be_corrected(*known, *machine, options);
  return PlannedMachine{.machine = std::move(*machine),
                        .measured_rates = correctable ? planner::to_json(known->probed) : ""};
}

}  // namespace elixir
