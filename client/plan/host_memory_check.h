#pragma once

#include <cstdint>

#include "base/host_memory.h"
#include "client/plan/run_plan.h"

namespace elixir {

// What elixird reserves for all ranks of a node.
uint64_t host_states_bytes(const RunPlan& plan, uint32_t local_ranks);

// Refuses a training that cannot fit, before a module that was built under MetaInit takes memory.
// It counts the states in elixird, gradients that wait, and the trainers' own memory; otherwise the
// kernel's out-of-memory killer would end one of them later. elixird decides for good about the
// states, at attach. Rank 0 of the node answers for the whole job, the others for their share,
// since memory that a faster rank has taken already must not count twice. kResourceExhausted says
// need, have and remedy.
Status check_host_memory(const RunPlan& plan, uint32_t local_rank, uint32_t local_ranks,
                         const MemoryRoom& room = memory_room());

}  // namespace elixir
