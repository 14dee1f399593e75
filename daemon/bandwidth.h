#pragma once

#include <atomic>
#include <cstdint>

#include "daemon/topology.h"

namespace elixir::daemon {

struct Bandwidth {
  uint32_t threads = 0;
  double gb_s = 0;  // bytes read and written in place, 10^9 a second
};

// In-place bandwidth of one node's memory: every byte of a buffer far larger than the caches is
// read, changed and written back. With `threads` 0, adds threads until one more step of them gains
// an Adam update of the same memory less than 3 %, and returns that number. Takes some tenths of a
// second. Measures nothing (gb_s 0, all processors) when the buffer would need more than
// `spare_bytes`, or when `stop` becomes true meanwhile.
Bandwidth measure_bandwidth(const NodeCpus& node, uint32_t threads, uint64_t spare_bytes,
                            const std::atomic<bool>& stop);

}  // namespace elixir::daemon
