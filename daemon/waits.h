#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/job.h"

namespace elixir::daemon {

// A rank of this node that waits for others, as far as elixird can see it.
struct RankWait {
  uint32_t rank = 0, local_rank = 0;
  std::string for_what;
  int64_t since_ns = 0;
};

// All waits, by local rank. Ranks are named by their numbers in the whole job. Ranks of other nodes
// are not seen.
std::vector<RankWait> waits_of(const Job& job);

// Logs a wait after ten seconds, then every thirty.
void say_who_waits(const Job& job, int64_t now_ns);

}  // namespace elixir::daemon
