#pragma once

#include <cstdint>

namespace elixir {

// CLOCK_MONOTONIC in nanoseconds: one clock for every process of a node.
int64_t monotonic_ns();

inline double seconds_since(int64_t start_ns) {
  return static_cast<double>(monotonic_ns() - start_ns) * 1e-9;
}

// Tells when a wait should report that it still lasts: after `first_s`, then every `every_s`.
class WaitNotes {
 public:
  explicit WaitNotes(double every_s = 10, double first_s = 2)
      : every_s_(every_s), next_s_(first_s) {}

  bool due(double waited_s) {
    if (waited_s < next_s_) return false;
    next_s_ = waited_s + every_s_;
    return true;
  }

 private:
  double every_s_, next_s_;
};

}  // namespace elixir
