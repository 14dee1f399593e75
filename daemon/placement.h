#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "daemon/topology.h"
#include "shm/segment.h"

namespace elixir::daemon {

// A rank, and its request for the place of its memory.
struct PlaceOfRank {
  uint32_t workers = 0;  // the most threads of its job; 0: all
  uint32_t local_rank = 0;
  int32_t numa_node = -1;  // the node that it asks for; -1: any
};

// The group of workers that updates a rank. The rank's memory is put on this group's node. The
// group must have threads for the rank's job (daemon/slices.h, group_limits): otherwise workers of
// another node would update the memory from afar for as long as the job runs. Among such groups,
// the group of the node that the rank asks for is chosen. If there is none, the nearest by
// `distance` (of two nodes; 0: not known) is chosen. If the rank asks for no node, or no distance
// is known, ranks take the groups in turn.
uint32_t group_of_rank(std::span<const NodeThreads> groups, const PlaceOfRank& rank,
                       const std::function<int(int, int)>& distance);

// The system's distance of two nodes; 0: not known.
int node_distance(int from, int to);

// Estimates from a sample of pages how many bytes of filled segments lie on other nodes than
// `node`. The system silently uses another node if this one is full, or if the process may not
// choose (a container without the right to call mbind). Empty where the system does not tell.
std::optional<uint64_t> bytes_off_node(std::span<const shm::Segment* const> segments, int node);

}  // namespace elixir::daemon
