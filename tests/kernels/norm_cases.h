#pragma once

// Gradients whose squares are summed, and the expected results by optim::take_gradients.

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/element.h"
#include "optim_cpu/gradients.h"
#include "tests/optim_cpu/states.h"

namespace elixir::kernels {

inline bool same_bits(const NormSum& a, const NormSum& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Small values and some larger ones. With `odd_ones`, a few are infinite or NaN.
template <ComputeType kType>
std::vector<ElementOf<kType>> gradients(size_t numel, uint64_t seed, bool odd_ones = false) {
  optim::Random random(seed);
  std::vector<ElementOf<kType>> values(numel);
  for (ElementOf<kType>& value : values) {
    const uint64_t kind = random.below(1000);
    value =
        Format<kType>::narrow(kind == 0 && odd_ones   ? INFINITY
                              : kind == 1 && odd_ones ? NAN
                                                      : random.uniform(kind < 10 ? 30.0f : 0.01f));
  }
  return values;
}

// Floats of every kind: denormals, the greatest values, infinities and NaNs.
inline std::vector<float> gradients_of_every_kind(size_t numel, uint64_t seed) {
  optim::Random random(seed);
  std::vector<float> values(numel);
  for (float& value : values) value = optim::bits_float(random.float_of_any_kind());
  return values;
}

template <ComputeType kType>
NormSum expected_norm(const std::vector<ElementOf<kType>>& grads) {
  const void* const pointers[] = {grads.data()};
  NormSum sum = {};
  optim::take_gradients(optim::best_isa(),
                        {.type = kType, .grads = pointers, .numel = grads.size()}, &sum);
  return sum;
}

}  // namespace elixir::kernels
