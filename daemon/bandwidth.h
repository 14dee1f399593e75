#pragma once

#include <atomic>
#include <cstdint>

#include "daemon/topology.h"

namespace elixir::daemon {

struct Bandwidth {
  uint32_t threads = 0;
  double gb_s = 0;  // bytes read and written in place, 10^9 a second
};

// Measures the in-place bandwidth of one node's memory: reads, changes and writes back every byte
// of a buffer far larger than the caches. With `threads` 0 it adds threads until one more step of
// them speeds up an Adam update of the same memory by less than 3 %, and returns that number. Takes
// some tenths of a second. Measures nothing (gb_s 0, NodeCpus::most_threads) if the buffer would
// need more than `spare_bytes`, or if `stop` becomes true.
Bandwidth measure_bandwidth(const NodeCpus& node, uint32_t threads, uint64_t spare_bytes,
                            const std::atomic<bool>& stop);

}  // namespace elixir::daemon
