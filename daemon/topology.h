#pragma once

#include <cstdint>
#include <vector>

#include "base/processors.h"

namespace elixir::daemon {

// A NUMA node, and its processors on which this process may run.
struct NodeCpus {
  int node = 0;
  std::vector<int> cpus;
  uint32_t most_threads = 1;  // running at a time: one per processor, or as a quota allows
};

// A worker group: its node, the processors to which its threads are bound, and their number.
struct NodeThreads {
  int node = 0;
  std::vector<int> cpus;
  uint32_t threads = 0;
};

// The nodes with processors in this process's affinity mask (so cpusets, taskset and containers are
// honoured), in ascending order. Without NUMA there is one node 0. Never empty. `parallel`: threads
// of the process that can run at a time.
std::vector<NodeCpus> allowed_nodes(uint32_t parallel = parallel_threads());

// Spreads `threads` over the nodes, one each in turn. Nodes that get none are left out.
std::vector<NodeThreads> spread_threads(const std::vector<NodeCpus>& nodes, uint32_t threads);

}  // namespace elixir::daemon
