#pragma once

#include <cstdint>
#include <vector>

namespace elixir::daemon {

// A NUMA node and those of its processors this process may run on.
struct NodeCpus {
  int node = 0;
  std::vector<int> cpus;
};

// A worker group: its node, the processors its threads are bound to, how many threads.
struct NodeThreads {
  int node = 0;
  std::vector<int> cpus;
  uint32_t threads = 0;
};

// The nodes with processors in this process's affinity mask (so cpusets, taskset and containers are
// honoured), in ascending order; one node 0 where the system has no NUMA. Never empty.
std::vector<NodeCpus> allowed_nodes();

// Spreads `threads` over the nodes, one each in turn. Nodes that get none are left out.
std::vector<NodeThreads> spread_threads(const std::vector<NodeCpus>& nodes, uint32_t threads);

}  // namespace elixir::daemon
