#include "daemon/placement.h"

#include <numa.h>
#include <numaif.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "daemon/slices.h"

namespace elixir::daemon {
namespace {

// Of a segment; a system call each.
constexpr uint64_t kSampledPages = 256;

std::vector<uint32_t> groups_with_threads(std::span<const NodeThreads> groups, uint32_t workers) {
  std::vector<uint32_t> usable;
  const std::vector<uint32_t> limits = group_limits(static_cast<uint32_t>(groups.size()), workers);
  for (uint32_t group = 0; group < limits.size(); ++group) {
    if (limits[group] > 0) usable.push_back(group);
  }
  return usable;
}

}  // namespace

uint32_t group_of_rank(std::span<const NodeThreads> groups, const PlaceOfRank& rank,
                       const std::function<int(int, int)>& distance) {
  const std::vector<uint32_t> usable = groups_with_threads(groups, rank.workers);
  ELIXIR_CHECK(!usable.empty(), "no group has a thread for rank {}", rank.local_rank);
  const uint32_t in_turn = usable[rank.local_rank % usable.size()];
  if (rank.numa_node < 0) return in_turn;
  int nearest = 0;  // not known
  uint32_t chosen = in_turn;
  for (const uint32_t group : usable) {
    if (groups[group].node == rank.numa_node) return group;
    const int far = distance(rank.numa_node, groups[group].node);
    if (far <= 0 || (nearest > 0 && far >= nearest)) continue;
    nearest = far;
    chosen = group;
  }
  return chosen;
}

int node_distance(int from, int to) { return numa_available() < 0 ? 0 : numa_distance(from, to); }

std::optional<uint64_t> bytes_off_node(std::span<const shm::Segment* const> segments, int node) {
  uint64_t off_node_bytes = 0;
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (const shm::Segment* segment : segments) {
    const uint64_t pages = segment->bytes() / page_bytes;
    const uint64_t sampled = std::clamp<uint64_t>(pages, 1, kSampledPages);
    uint64_t elsewhere = 0;
    for (uint64_t i = 0; i < sampled; ++i) {
      int page_node = -1;
      std::byte* const page = segment->data() + i * pages / sampled * page_bytes;
      if (::get_mempolicy(&page_node, nullptr, 0, page, MPOL_F_NODE | MPOL_F_ADDR) != 0) {
        return std::nullopt;
      }
      elsewhere += page_node != node;
    }
    off_node_bytes += segment->bytes() / sampled * elsewhere;
  }
  return off_node_bytes;
}

}  // namespace elixir::daemon
