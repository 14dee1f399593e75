#pragma once

#include <cstdint>

namespace elixir {

// The type in which a model computes. Parameters and gradients have it on the device and in the
// param and grad slots. The values are part of the shared-memory layout.
enum class ComputeType : uint32_t { kBf16 = 0, kFp16 = 1, kFp32 = 2 };

// Bytes of one parameter or gradient: 2, 2, 4.
constexpr uint64_t element_bytes(ComputeType type) { return type == ComputeType::kFp32 ? 4 : 2; }

// Bytes per parameter that complete the 16-bit parameter to the FP32 master: 2, 4, 0.
constexpr uint64_t master_bytes(ComputeType type) {
  return type == ComputeType::kBf16 ? 2 : type == ComputeType::kFp16 ? 4 : 0;
}

}  // namespace elixir
