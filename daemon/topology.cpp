#include "daemon/topology.h"

#include <numa.h>
#include <sched.h>

#include <map>

#include "base/check.h"

namespace elixir::daemon {
namespace {

constexpr int kMaxCpus = 8192;

class CpuSet {
 public:
  CpuSet() : set_(CPU_ALLOC(kMaxCpus)), bytes_(CPU_ALLOC_SIZE(kMaxCpus)) {
    CPU_ZERO_S(bytes_, set_);
  }
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  cpu_set_t* get() { return set_; }
  size_t bytes() const { return bytes_; }

 private:
  cpu_set_t* set_;
  size_t bytes_;
};

}  // namespace

std::vector<NodeCpus> allowed_nodes() {
  CpuSet allowed;
  std::map<int, std::vector<int>> cpus_of_node;
  if (::sched_getaffinity(0, allowed.bytes(), allowed.get()) == 0) {
    const bool numa = numa_available() >= 0;
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (!CPU_ISSET_S(cpu, allowed.bytes(), allowed.get())) continue;
      const int node = numa ? numa_node_of_cpu(cpu) : 0;
      cpus_of_node[node < 0 ? 0 : node].push_back(cpu);
    }
  }
  if (cpus_of_node.empty()) cpus_of_node[0].push_back(0);
  std::vector<NodeCpus> nodes;
  for (auto& [node, cpus] : cpus_of_node) nodes.push_back({node, std::move(cpus)});
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

void bind_this_thread(const std::vector<int>& cpus) {
  CpuSet set;
  for (const int cpu : cpus) CPU_SET_S(cpu, set.bytes(), set.get());
  ::sched_setaffinity(0, set.bytes(), set.get());
}

}  // namespace elixir::daemon
