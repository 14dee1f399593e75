#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "client/ranks/member.h"

namespace elixir {

// What a rank says once a step about the collectives it has made, and what it posts.
struct Vote {
  uint64_t history = 0;  // a running hash over their kinds and chunks
  uint32_t step = 0;
  uint32_t flags = 0;  // not compared
  uint64_t terms = 0;  // a hash of the step's hyperparameters
};

// votes and members: by rank. kProtocol, naming the ranks that differ from the greater part, or
// from rank 0 where there is none.
Status compare_votes(std::span<const Vote> votes, std::span<const Member> members);

}  // namespace elixir
