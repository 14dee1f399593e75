#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/compute_type.h"

namespace elixir {

// Sets out[i] to the sum of sources[0][i], sources[1][i], ..., added in FP32 in this order and then
// rounded to the type. For FP32, elixird's workers get these bits from equal gradients. All arrays
// have `numel` elements, and `out` may be one of the sources.
void sum_in_order(const std::vector<const std::byte*>& sources, std::byte* out, uint64_t numel,
                  ComputeType type);

}  // namespace elixir
