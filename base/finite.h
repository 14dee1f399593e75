#pragma once

// Counts stored values that are not finite, or that a narrower type cannot hold.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/compute_type.h"

namespace elixir {

// How a value lies in memory or in a file, little-endian. kNone: it is not a floating-point value.
// kFp32Square: FP32 in which a negative value counts as not finite, such as Adam's exp_avg_sq.
enum class ValueFormat : uint8_t { kNone, kBf16, kFp16, kFp32, kFp32Square, kFp64 };
ValueFormat format_of(ComputeType type);
size_t value_bytes(ValueFormat format);  // 1 for kNone

struct ValueCounts {
  uint64_t not_finite = 0;  // NaN or infinity
  uint64_t too_large = 0;   // finite, but infinite once rounded to the narrower type

  bool good() const { return not_finite == 0 && too_large == 0; }
  void operator+=(const ValueCounts& other) {
    not_finite += other.not_finite;
    too_large += other.too_large;
  }
  bool operator==(const ValueCounts&) const = default;
};

// Counts the whole values in `bytes`, which need not be aligned. `kept_as`: the type to which they
// are rounded, to nearest even. With kNone it counts nothing. Thread-safe. Reads the memory once.
ValueCounts count_values(ValueFormat format, std::span<const std::byte> bytes,
                         ComputeType kept_as = ComputeType::kFp32);

// The largest value that the type holds: 65504 for FP16.
double largest_value(ComputeType type);

}  // namespace elixir
