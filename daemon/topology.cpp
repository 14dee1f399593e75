#include "daemon/topology.h"

#include <numa.h>

#include <algorithm>
#include <map>

#include "base/check.h"

namespace elixir::daemon {

std::vector<NodeCpus> allowed_nodes(uint32_t parallel) {
  std::map<int, std::vector<int>> cpus_of_node;
  const bool numa = numa_available() >= 0;
  for (const int cpu : usable_processors()) {
    const int node = numa ? numa_node_of_cpu(cpu) : 0;
    cpus_of_node[node < 0 ? 0 : node].push_back(cpu);
  }
  std::vector<NodeCpus> nodes;
  for (auto& [node, cpus] : cpus_of_node) {
    const auto n_cpus = static_cast<uint32_t>(cpus.size());
    nodes.push_back({node, std::move(cpus), std::clamp(parallel, 1u, n_cpus)});
  }
  return nodes;
}

std::vector<NodeThreads> spread_threads(const std::vector<NodeCpus>& nodes, uint32_t threads) {
  ELIXIR_CHECK(!nodes.empty() && threads > 0, "{} threads on {} nodes", threads, nodes.size());
  std::vector<NodeThreads> groups;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto count = static_cast<uint32_t>(nodes.size());
    const uint32_t share = threads / count + (i < threads % count ? 1 : 0);
    if (share > 0) groups.push_back({nodes[i].node, nodes[i].cpus, share});
  }
  return groups;
}

}  // namespace elixir::daemon
