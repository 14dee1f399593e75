#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "planner/machine.h"

namespace elixir::planner {

// A GPU by its data sheet.
struct KnownGpu {
  const char* name;
  uint32_t memory_gib = 0;
  double peak_tflops = 0;  // dense, in BF16 with FP32 sums
  double fp32_tflops = 0;
  double memory_gb_s = 0;
  double link_gb_s = 0;  // PCIe, each way
};

// By name. Source: NVIDIA's data sheets and architecture papers.
std::span<const KnownGpu> known_gpus();
std::string known_gpu_names();  // "rtx3090, rtx4060, ..."

// Returns kInvalidArgument, with the names alike, for one that is not known.
Result<KnownGpu> known_gpu(std::string_view name);

// The shares of a data sheet's figures that plans count on. Products reached 0.77 and 0.78 of the
// peak on an H200 and an H100 (bench/RESULTS.md); the others are assumed.
inline constexpr double kProductShare = 0.77, kFp32Share = 0.9, kMemoryShare = 0.8,
                        kLinkShare = 0.85;
// Both ways at once, over one way: 93 of 55 GB/s on an H200.
inline constexpr double kJointShare = 1.6;

// The machine with these GPUs in place of its own, as many as it has. Its host stays. Links and
// rates of single numbers of GPUs (by_gpus) are the data sheet's, too.
Machine with_gpu(Machine machine, const KnownGpu& gpu);

}  // namespace elixir::planner
