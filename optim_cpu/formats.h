#pragma once

// The 16-bit types beside the FP32 master: BF16, which is the high half of its master, and IEEE
// half. Only bit operations and single IEEE 754 operations, so that every processor agrees.
// Compiles as C++ and as CUDA.

#include "optim_cpu/adam_math.h"

namespace elixir::optim {

// A BF16 parameter is its master rounded to nearest even, and `low` is the master's low 16 bits:
// together they are the master. With u the master's bits,
//
//   split:  low = u & 0xffff        param = (u + 0x7fff) >> 16
//   join:   u = (param - (low > 0x8000)) << 16 | low
//
// A tie (low == 0x8000) that rounds up to an even param would look like a tie that rounds down to
// it. So a master with (u & 0x1ffff) == 0x18000 gets its last bit set. This is part of Adam's
// definition in BF16. A NaN is 0x7fc00000.
// Note: docs/design/elixir.md, "split master".
struct SplitBf16 {
  uint16_t param;
  uint16_t low;
};

ELIXIR_MATH SplitBf16 split_bf16(float master) {
  uint32_t bits = float_bits(one_nan(master));
  if ((bits & 0x1ffff) == 0x18000) bits |= 1;
  return {static_cast<uint16_t>((bits + 0x7fff) >> 16), static_cast<uint16_t>(bits)};
}

// Any pair of halves joins to some float. The halves from split_bf16 join to the master.
ELIXIR_MATH float join_bf16(uint16_t param, uint16_t low) {
  const uint32_t high = static_cast<uint32_t>(param) - (low > 0x8000 ? 1 : 0);
  return bits_float(high << 16 | low);
}

ELIXIR_MATH float bf16_to_float(uint16_t value) {
  return bits_float(static_cast<uint32_t>(value) << 16);
}

// Exact. A NaN becomes kNanBits.
ELIXIR_MATH float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(half & 0x7fff) << 13;
  if (rest > 0x0f800000) return bits_float(kNanBits);
  if (rest == 0x0f800000) return bits_float(sign | 0x7f800000);
  // Read as a float, `rest` is 2^-112 times the value, denormal halves included.
  return bits_float(sign | float_bits(multiply(bits_float(rest), 0x1p112f)));
}

// Rounds to nearest even. Overflow becomes infinity, denormals are kept, and a NaN becomes 0x7e00.
ELIXIR_MATH uint16_t float_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint16_t>((bits & 0x80000000) >> 16);
  if (magnitude > 0x7f800000) return 0x7e00;
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 2^16
  if (magnitude < 0x38800000) {
    // Below 2^-14 halves are multiples of 2^-24, like floats in [0.5, 1): the addition rounds.
    const uint32_t shifted = float_bits(add(bits_float(magnitude), 0.5f));
    return static_cast<uint16_t>(sign | (shifted - 0x3f000000));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

}  // namespace elixir::optim
