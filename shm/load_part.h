#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/compute_type.h"
#include "shm/messages.h"

namespace elixir::shm {

// FP32 values on their way through slots that are as wide as the compute type: 16-bit slots take
// them in two passes, FP32 slots in one (LoadPart).
inline std::span<const LoadPart> load_parts(ComputeType type) {
  static constexpr LoadPart kOnePass[] = {LoadPart::kWhole};
  static constexpr LoadPart kTwoPasses[] = {LoadPart::kHighHalf, LoadPart::kLowHalf};
  if (type == ComputeType::kFp32) return kOnePass;
  return kTwoPasses;
}

// Values of a frozen chunk are bytes, and go in one pass: 16 bits lie in the upper half of the word
// where another chunk's FP32 value would be. No arithmetic touches them, so that what is a NaN to a
// 16-bit type and means something else to a program comes through as it is.
inline LoadPart frozen_part(ComputeType type) { return load_parts(type).front(); }

inline void put_part(const float* values, uint64_t numel, LoadPart part, std::byte* slot) {
  if (part == LoadPart::kWhole) {
    std::memcpy(slot, values, numel * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < numel; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    const auto word = static_cast<uint16_t>(part == LoadPart::kHighHalf ? bits >> 16 : bits);
    std::memcpy(slot + i * sizeof word, &word, sizeof word);
  }
}

// kHighHalf first, kLowHalf adds to it.
inline void take_part(const std::byte* slot, uint64_t numel, LoadPart part, float* values) {
  if (part == LoadPart::kWhole) {
    std::memcpy(values, slot, numel * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < numel; ++i) {
    uint16_t word;
    std::memcpy(&word, slot + i * sizeof word, sizeof word);
    uint32_t bits = 0;
    if (part == LoadPart::kLowHalf) std::memcpy(&bits, &values[i], sizeof bits);
    bits |= part == LoadPart::kHighHalf ? uint32_t{word} << 16 : word;
    std::memcpy(&values[i], &bits, sizeof bits);
  }
}

}  // namespace elixir::shm
