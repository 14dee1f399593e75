#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "client/ranks/member.h"

namespace elixir {

// A rank's statement, once per step, about the collectives that it has made and the hyperparameters
// that it posts.
struct Vote {
  uint64_t history = 0;  // a running hash over the collectives' kinds and chunks
  uint32_t step = 0;
  uint32_t flags = 0;  // not compared
  uint64_t terms = 0;  // a hash of the step's hyperparameters
};

// `votes` and `members` are by rank. Returns kProtocol if votes differ, and names the ranks that
// differ from the majority, or from rank 0 if there is no majority.
Status compare_votes(std::span<const Vote> votes, std::span<const Member> members);

}  // namespace elixir
