#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace elixir::daemon {

// Another elixird, of any user, that may run on processors of this one.
struct Neighbour {
  pid_t pid = 0;
  uint32_t processors = 0;  // that both may use
};

inline constexpr size_t kMostNeighbours = 16;  // that the status shows

// The processes called `name` that share a processor with this one, as far as /proc shows them (not
// those of other containers), by pid, at most kMostNeighbours. Reads a line of each process.
std::vector<Neighbour> neighbours(const std::string& name = "elixird");

}  // namespace elixir::daemon
