#pragma once

#include <cstdint>
#include <vector>

#include "base/processors.h"

namespace elixir::daemon {

// A NUMA node and those of its processors this process may run on.
struct NodeCpus {
  int node = 0;
  std::vector<int> cpus;
  uint32_t most_threads = 1;  // that can run at a time: one per processor, or as a quota allows
};

// A worker group: its node, the processors its threads are bound to, how many threads.
struct NodeThreads {
  int node = 0;
  std::vector<int> cpus;
  uint32_t threads = 0;
};

// The nodes with processors in this process's affinity mask (so cpusets, taskset and containers are
// honoured), in ascending order; one node 0 where the system has no NUMA. Never empty. `parallel`:
// threads of the process that can run at a time.
std::vector<NodeCpus> allowed_nodes(uint32_t parallel = parallel_threads());

// Spreads `threads` over the nodes, one each in turn. Nodes that get none are left out.
std::vector<NodeThreads> spread_threads(const std::vector<NodeCpus>& nodes, uint32_t threads);

}  // namespace elixir::daemon
