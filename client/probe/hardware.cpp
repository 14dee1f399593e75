#include "client/probe/hardware.h"

#include <fmt/format.h>

#include <set>

#include "base/processors.h"
#include "base/units.h"
#include "client/torch_device/cuda_library.h"

namespace elixir::probe {
namespace {

std::string gpus_text() {
  const Result<CudaLibrary*> library = load_cuda_library();
  if (!library.ok()) return "";
  std::set<std::string> kinds;
  for (const CudaDeviceInfo& device : (*library)->devices().devices) {
    kinds.insert(fmt::format("{} {}", device.name, format_bytes(device.memory_bytes)));
  }
  return fmt::format("{}", fmt::join(kinds, " and "));
}

}  // namespace

std::string hardware_of(bool on_gpus) {
  const std::string device = on_gpus ? gpus_text() : "the CPU as device";
  if (device.empty()) return "";
  const uint32_t nodes = numa_nodes_of(usable_processors());
  return fmt::format("{}, {} x {}, {} NUMA node{}", device, parallel_threads(), processor_name(),
                     nodes, nodes == 1 ? "" : "s");
}

}  // namespace elixir::probe
