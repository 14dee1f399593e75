#include "planner/known_gpus.h"

#include <string>
#include <vector>

#include "base/nearest.h"

namespace elixir::planner {
namespace {

constexpr double kPcie4 = 31.5, kPcie5 = 63, kPcie4x8 = 15.75;

constexpr KnownGpu kKnown[] = {
    {"rtx3090", 24, 71, 35.6, 936, kPcie4},     {"rtx4060", 8, 30.2, 15.1, 272, kPcie4x8},
    {"rtx4070", 12, 58.3, 29.1, 504, kPcie4},   {"rtx4080", 16, 97.5, 48.7, 717, kPcie4},
    {"rtx4090", 24, 165.2, 82.6, 1008, kPcie4}, {"rtx5090", 32, 209.5, 104.8, 1792, kPcie5},
    {"a10", 24, 125, 31.2, 600, kPcie4},        {"l4", 24, 121, 30.3, 300, kPcie4},
    {"a6000", 48, 154.8, 38.7, 768, kPcie4},    {"l40s", 48, 362, 91.6, 864, kPcie4},
    {"a100-40gb", 40, 312, 19.5, 1555, kPcie4}, {"a100-80gb", 80, 312, 19.5, 2039, kPcie4},
    {"h100-pcie", 80, 756, 51, 2000, kPcie5},   {"h100", 80, 989.4, 67, 3350, kPcie5},
    {"h200", 141, 989.4, 67, 4800, kPcie5},
};

}  // namespace

std::span<const KnownGpu> known_gpus() { return kKnown; }

std::string known_gpu_names() {
  std::string names;
  for (const KnownGpu& gpu : kKnown) names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  return names;
}

Result<KnownGpu> known_gpu(std::string_view name) {
  std::vector<std::string> names;
  for (const KnownGpu& gpu : kKnown) {
    if (gpu.name == name) return gpu;
    names.emplace_back(gpu.name);
  }
  const std::string nearest = nearest_name(std::string(name), names);
  return error(Code::kInvalidArgument, "--gpu {} is not known{}; known are {}", name.substr(0, 40),
               nearest.empty() ? "" : ", did you mean " + nearest + "?", known_gpu_names());
}

Machine with_gpu(Machine machine, const KnownGpu& gpu) {
  const double gpus = machine.gpus;
  machine.gpu_memory_bytes = uint64_t{gpu.memory_gib} << 30;
  machine.overhead_bytes = kDeviceOverheadBytes;
  machine.gpu_peak_tflops = gpu.peak_tflops;
  machine.gpu_tflops = kProductShare * gpu.peak_tflops;
  machine.gpu_fp32_tflops = kFp32Share * gpu.fp32_tflops;
  machine.gpu_memory_gb_s = kMemoryShare * gpu.memory_gb_s;
  machine.gpu_update_gparam_s = gpus * machine.gpu_memory_gb_s / kUpdateBytes;
  machine.gpu_launch_us = 0;
  machine.gpu_attention_tflops.clear();
  machine.h2d_gb_s = machine.d2h_gb_s = gpus * kLinkShare * gpu.link_gb_s;
  machine.joint_gb_s = kJointShare * machine.h2d_gb_s;
  for (GpuRates& rates : machine.by_gpus) {
    rates.h2d_gb_s = rates.d2h_gb_s = rates.joint_gb_s = rates.gpu_update_gparam_s = 0;
  }
  machine.name = gpu.name;
  return machine;
}

}  // namespace elixir::planner
