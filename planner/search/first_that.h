#pragma once

#include <cstdint>

#include "base/check.h"

namespace elixir::planner {

// The least number in [low, high] that holds; high where none does. REQUIRES: those that hold
// follow those that do not.
template <typename Holds>
uint32_t first_that(uint32_t low, uint32_t high, const Holds& holds) {
  ELIXIR_CHECK(low <= high, "[{}, {}] is empty", low, high);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace elixir::planner
