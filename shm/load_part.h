#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/compute_type.h"
#include "shm/messages.h"

namespace elixir::shm {

// The passes in which FP32 values go through slots whose elements have the compute type: two passes
// for 16-bit types, one for FP32.
inline std::span<const LoadPart> load_parts(ComputeType type) {
  static constexpr LoadPart kOnePass[] = {LoadPart::kWhole};
  static constexpr LoadPart kTwoPasses[] = {LoadPart::kHighHalf, LoadPart::kLowHalf};
  if (type == ComputeType::kFp32) return kOnePass;
  return kTwoPasses;
}

// Values of a frozen chunk are copied as bytes, in one pass. A 16-bit value lies in the upper half
// of a word that holds an FP32 value for other chunks. No arithmetic touches the values, because
// their bits may have a meaning of the program's own and look like a NaN.
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

// Take kHighHalf first; kLowHalf then adds its bits.
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
