#include "planner/search/benefit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace elixir::planner {
namespace {

constexpr double kStateBytes = 4;  // L_os
constexpr double kGiga = 1e9;
constexpr uint32_t kLongestStride = 64;  // rarer is not worth the memory

}  // namespace

double allocated_activations(const ModelProfile& profile) {
  if (profile.allocated_bytes != 0) return static_cast<double>(profile.allocated_bytes);
  return kActivationFactor * static_cast<double>(profile.activation_bytes);
}

uint64_t allowed_bytes(const Machine& machine, const ModelProfile& profile) {
  const double left = static_cast<double>(machine.gpu_memory_bytes) -
                      static_cast<double>(profile.buffer_bytes) - allocated_activations(profile);
  // Where activations are small their fragmentation does not hold the overhead, too.
  const double beside =
      static_cast<double>(machine.gpu_memory_bytes) - static_cast<double>(profile.buffer_bytes) -
      static_cast<double>(profile.activation_bytes) - static_cast<double>(machine.overhead_bytes);
  return static_cast<uint64_t>(std::max(0.0, std::min(kAllocatedShare * left, beside)));
}

Benefits benefits(const Machine& machine, uint64_t chunk_numel, uint32_t dtype_bytes) {
  ELIXIR_CHECK(dtype_bytes == 2 || dtype_bytes == 4, "parameters of {} bytes", dtype_bytes);
  const double compute_bytes = dtype_bytes;              // L_c
  const double state_factor = dtype_bytes == 2 ? 3 : 2;  // F_os: master, exp_avg, exp_avg_sq
  const double numel = static_cast<double>(chunk_numel) / kGiga;  // against rates in 1e9 a second
  Benefits result;
  result.i = numel * (1 / machine.d2h_gb_s + 1 / machine.h2d_gb_s);
  result.j = machine.gpus / (compute_bytes + kStateBytes * state_factor) *
             (kStateBytes * numel / machine.h2d_gb_s + compute_bytes * result.i +
              compute_bytes * numel / machine.d2h_gb_s + numel / machine.cpu_update_gparam_s -
              numel / machine.gpu_update_gparam_s);
  return result;
}

uint32_t equation_stride(const Machine& machine) {
  const double link = std::min(machine.h2d_gb_s, machine.d2h_gb_s) / 4;
  const double saved = 1 / machine.cpu_update_gparam_s - 1 / (2 * link);
  if (saved <= 0) return 0;
  const double k = (3 / link + 1 / machine.gpu_update_gparam_s) / saved;
  const double stride = std::ceil(k) + 1;
  return stride > kLongestStride ? 0 : static_cast<uint32_t>(stride);
}

SwingRates swing_rates(const Machine& machine, const shm::Shape& shape) {
  SwingRates rates;
  double link = std::min(machine.h2d_gb_s, machine.d2h_gb_s);
  if (machine.joint_gb_s > 0) link = std::min(link, machine.joint_gb_s / 2);
  const auto element = static_cast<double>(element_bytes(shape.type));
  const double moved = element + static_cast<double>(shape.element_state_bytes());
  rates.cpu_numel_s = kGiga * machine.cpu_update_gparam_s;
  rates.swing_numel_s = kGiga * std::min(link / moved, machine.gpu_update_gparam_s);
  if (machine.dram_gb_s > 0) {
    // Gradients come down and parameters go up of all chunks, whoever updates them.
    const double both = 2 * element;
    const double cpu = 2 * moved + shape.shard_gradients() * element;
    const double left = kGiga * machine.dram_gb_s - (cpu + both) * rates.cpu_numel_s;
    const double most = std::max(0.0, left) / (2 * moved + both);
    rates.swing_numel_s = std::min(rates.swing_numel_s, most);
  }
  if (rates.swing_numel_s <= 0) return rates;
  const double stride = std::round(1 + rates.cpu_numel_s / rates.swing_numel_s);
  if (stride <= kLongestStride) rates.stride = static_cast<uint32_t>(stride);
  return rates;
}

}  // namespace elixir::planner
