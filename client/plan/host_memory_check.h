#pragma once

#include <cstdint>

#include "base/host_memory.h"
#include "client/plan/run_plan.h"

namespace elixir {

// Bytes that elixird reserves for all ranks of a node.
uint64_t host_states_bytes(const RunPlan& plan, uint32_t local_ranks);

// Returns kResourceExhausted, with need, have and remedy, for a training that cannot fit. Call it
// before a module that was built under MetaInit takes memory. It counts the states in elixird,
// gradients that wait, activations, and the trainers' own memory. Without this check, the kernel's
// out-of-memory killer would end one of them later. At attach, elixird makes the final decision
// about the states. Rank 0 of the node checks the whole job, the others their share. So memory that
// a faster rank has taken already does not count twice.
Status check_host_memory(const RunPlan& plan, uint32_t local_rank, uint32_t local_ranks,
                         const MemoryRoom& room = memory_room());

}  // namespace elixir
