#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/compute_type.h"

namespace elixir::shm {

// FP32 values on their way through slots that are as wide as the compute type: 16-bit slots take
// them in two passes, FP32 slots in one.
enum class Half { kWhole, kHigh, kLow };

inline std::span<const Half> halves_of(ComputeType type) {
  static constexpr Half kOnePass[] = {Half::kWhole};
  static constexpr Half kTwoPasses[] = {Half::kHigh, Half::kLow};
  if (type == ComputeType::kFp32) return kOnePass;
  return kTwoPasses;
}

inline void put_half(const float* values, uint64_t numel, Half half, std::byte* slot) {
  if (half == Half::kWhole) {
    std::memcpy(slot, values, numel * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < numel; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    const auto part = static_cast<uint16_t>(half == Half::kHigh ? bits >> 16 : bits);
    std::memcpy(slot + i * sizeof part, &part, sizeof part);
  }
}

// kHigh first, kLow adds to it.
inline void take_half(const std::byte* slot, uint64_t numel, Half half, float* values) {
  if (half == Half::kWhole) {
    std::memcpy(values, slot, numel * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < numel; ++i) {
    uint16_t part;
    std::memcpy(&part, slot + i * sizeof part, sizeof part);
    uint32_t bits = 0;
    if (half == Half::kLow) std::memcpy(&bits, &values[i], sizeof bits);
    bits |= half == Half::kHigh ? uint32_t{part} << 16 : part;
    std::memcpy(&values[i], &bits, sizeof bits);
  }
}

}  // namespace elixir::shm
