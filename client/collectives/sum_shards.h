#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/compute_type.h"

namespace elixir {

// out[i] = the sum of sources[0][i], sources[1][i], ..., added in FP32 in this order, then rounded
// to the type: for FP32 the bits that elixird's workers get for the same gradients. `out` may be
// one of the sources. All have `numel` elements.
void sum_in_order(const std::vector<const std::byte*>& sources, std::byte* out, uint64_t numel,
                  ComputeType type);

}  // namespace elixir
