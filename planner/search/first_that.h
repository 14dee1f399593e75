#pragma once

#include <cstdint>

#include "base/check.h"

namespace elixir::planner {

// The least number in [low, high] for which `holds` is true, or `high` if there is none. REQUIRES:
// if it is true for a number, it is true for all greater ones.
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
