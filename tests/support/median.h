#pragma once

#include <algorithm>
#include <vector>

namespace elixir::test {

// Of an even number the greater of the two in the middle. REQUIRES: there are some.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace elixir::test
