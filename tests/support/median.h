#pragma once

#include <algorithm>
#include <vector>

namespace elixir::test {

// The median; of an even number of values, the greater of the two in the middle. REQUIRES: at least
// one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace elixir::test
