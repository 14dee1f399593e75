#pragma once

// The values of ranks before a collective, and their sum.

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/compute_type.h"

namespace elixir {

inline constexpr ComputeType kTypes[] = {ComputeType::kFp32, ComputeType::kBf16,
                                         ComputeType::kFp16};

// The value of rank `rank` at element `i` before a collective. Values have many magnitudes, so that
// the order of a sum shows in its bits.
inline float value_of(uint32_t rank, uint64_t i) {
  std::minstd_rand random(static_cast<unsigned>(rank * 7919 + i * 104729 + 1));
  random.discard(3);
  const float mantissa = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
  return std::ldexp(mantissa, static_cast<int>(random() % 12) - 6);
}

inline void store(std::byte* memory, uint64_t i, float value, ComputeType type) {
  if (type == ComputeType::kFp32) std::memcpy(memory + i * 4, &value, 4);
  if (type == ComputeType::kBf16) {
    const c10::BFloat16 rounded(value);
    std::memcpy(memory + i * 2, &rounded, 2);
  }
  if (type == ComputeType::kFp16) {
    const c10::Half rounded(value);
    std::memcpy(memory + i * 2, &rounded, 2);
  }
}

inline float load(const std::byte* memory, uint64_t i, ComputeType type) {
  if (type == ComputeType::kBf16) return *reinterpret_cast<const c10::BFloat16*>(memory + i * 2);
  if (type == ComputeType::kFp16) return *reinterpret_cast<const c10::Half*>(memory + i * 2);
  return *reinterpret_cast<const float*>(memory + i * 4);
}

inline std::vector<std::byte> block_of(uint32_t rank, uint64_t numel, ComputeType type) {
  std::vector<std::byte> block(numel * element_bytes(type));
  for (uint64_t i = 0; i < numel; ++i) store(block.data(), i, value_of(rank, i), type);
  return block;
}

// The sum as elixird's workers make it: in FP32, in the order of ranks, or backwards.
inline std::vector<std::byte> plain_sum(uint32_t ranks, uint64_t numel, ComputeType type,
                                        bool backwards = false) {
  std::vector<std::byte> sum(numel * element_bytes(type));
  for (uint64_t i = 0; i < numel; ++i) {
    float total = 0;
    for (uint32_t n = 0; n < ranks; ++n) {
      std::byte rounded[4];
      store(rounded, 0, value_of(backwards ? ranks - 1 - n : n, i), type);
      total = n == 0 ? load(rounded, 0, type) : total + load(rounded, 0, type);
    }
    store(sum.data(), i, total, type);
  }
  return sum;
}

}  // namespace elixir
