#pragma once

// A sum of squares that does not depend on the order of summation.
//
// Gradients are cut into leaves of kNormLeafNumel elements. Leaves begin at multiples of this
// number, counted from the parameter's first element. A leaf's sum of squares is a double, taken in
// a fixed order (optim_cpu/gradients.h). Leaves are added exactly, in fixed point, which is wide
// enough for all doubles that a leaf can have (a long accumulator: Kulisch, Computer Arithmetic and
// Validity, 2008). Exact addition is associative. So chunks, shards, threads and devices may take
// leaves in any order and add up their parts. Every parameter, shard and slice begins at such a
// multiple (shm/shape.h), and elements between parameters are zero.
// Note: docs/design/elixir.md, "exact norm".
//
// Compiles as C++ and as CUDA and includes nothing of Elixir.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define ELIXIR_SUM __host__ __device__ inline
#else
#define ELIXIR_SUM inline
#endif

namespace elixir {

inline constexpr int kNormLeafNumel = 64;

// Limb i counts in units of 2^(32 i - 298): 2^-298 is the square of the least float.
inline constexpr int kNormLimbs = 20;
inline constexpr int kNormUnitExponent = -298;

struct NormSum {
  uint64_t limb[kNormLimbs];
  uint64_t nonfinite;  // elements that are not finite, which count as zero in the sum
};
static_assert(sizeof(NormSum) == 168);

// Calls add(limb, value), value < 2^32, for the one to three limbs that make up `leaf`. `leaf` is a
// finite double >= 0, a multiple of 2^-298, and at most 64 times a float's square. 2^32 calls for
// one limb do not overflow it.
template <class Add>
ELIXIR_SUM void split_leaf(double leaf, const Add& add) {
  uint64_t bits;
  memcpy(&bits, &leaf, sizeof bits);
  const int exponent = static_cast<int>(bits >> 52);  // never negative, so no sign
  if (exponent == 0) return;                          // zero: denormal doubles are below the unit
  uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  int position = exponent - 1075 - kNormUnitExponent;  // the mantissa's lowest bit
  if (position < 0) {
    mantissa >>= -position;  // shifts out zeros
    position = 0;
  }
  const int limb = position / 32, shift = position % 32;
  const uint64_t low = (mantissa & 0xffffffff) << shift;
  const uint64_t high = (mantissa >> 32) << shift;
  const uint64_t middle = (low >> 32) + (high & 0xffffffff);
  add(limb, low & 0xffffffff);
  add(limb + 1, middle & 0xffffffff);
  const uint64_t top = (high >> 32) + (middle >> 32);
  if (top != 0) add(limb + 2, top);
}

ELIXIR_SUM void add_leaf(NormSum& sum, double leaf) {
  split_leaf(leaf, [&sum](int limb, uint64_t value) { sum.limb[limb] += value; });
}

// Brings every limb except the last below 2^32. The value stays the same.
inline void carry(NormSum& sum) {
  for (int i = 0; i + 1 < kNormLimbs; ++i) {
    sum.limb[i + 1] += sum.limb[i] >> 32;
    sum.limb[i] &= 0xffffffff;
  }
}

// REQUIRES: a sum gets at most 2^31 carried parts, or one that was not; nothing counts them.
inline void add(NormSum& sum, const NormSum& part) {
  NormSum carried = part;
  carry(carried);
  carry(sum);
  for (int i = 0; i < kNormLimbs; ++i) sum.limb[i] += carried.limb[i];
  sum.nonfinite += part.nonfinite;
}

// The sum as a double, within a unit in the last place. Equal sums give equal doubles.
inline double to_double(NormSum sum) {
  carry(sum);
  int top = kNormLimbs - 1;
  while (top > 2 && sum.limb[top] == 0) --top;
  double value = 0;
  for (int i = top; i >= top - 2; --i) {
    value += std::ldexp(static_cast<double>(sum.limb[i]), 32 * i + kNormUnitExponent);
  }
  return value;
}

}  // namespace elixir
