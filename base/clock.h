#pragma once

#include <cstdint>

namespace elixir {

// CLOCK_MONOTONIC in nanoseconds: one clock for every process of a node.
int64_t monotonic_ns();

inline double seconds_since(int64_t start_ns) {
  return static_cast<double>(monotonic_ns() - start_ns) * 1e-9;
}

}  // namespace elixir
