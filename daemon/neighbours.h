#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace elixir::daemon {

// Another elixird, of any user, that may run on processors of this one.
struct Neighbour {
  pid_t pid = 0;
  uint32_t processors = 0;  // shared with this one
};

inline constexpr size_t kMostNeighbours = 16;  // shown in the status

// The processes called `name` that share a processor with this one, by pid, at most
// kMostNeighbours. Only those that /proc shows: processes of other containers are missing. Reads a
// line of each process.
std::vector<Neighbour> neighbours(const std::string& name = "elixird");

}  // namespace elixir::daemon
