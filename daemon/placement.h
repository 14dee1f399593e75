#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "daemon/topology.h"
#include "shm/segment.h"

namespace elixir::daemon {

// Where the memory of a rank should lie.
struct PlaceOfRank {
  uint32_t workers = 0;  // its job's: at most so many threads; 0: all
  uint32_t local_rank = 0;
  int32_t numa_node = -1;  // that it asks for; -1: any
};

// The group of workers that updates a rank, on whose node its memory is to lie: one that has
// threads for its job (daemon/slices.h, group_limits), since another one's memory would be updated
// from afar for as long as the job runs. That of the node which the rank asks for, else the nearest
// by `distance` (of two nodes; 0 where it is not known), else one rank after the other.
uint32_t group_of_rank(std::span<const NodeThreads> groups, const PlaceOfRank& rank,
                       const std::function<int(int, int)>& distance);

// What the system says of two nodes.
int node_distance(int from, int to);

// How much of what is filled lies on other nodes than `node`, by a sample of pages: memory of a
// node that is full, or that may not be chosen (a container without the right to call mbind), comes
// from another one without a word. None where the system does not tell.
std::optional<uint64_t> bytes_off_node(std::span<const shm::Segment* const> segments, int node);

}  // namespace elixir::daemon
