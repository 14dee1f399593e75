#pragma once

#include <cstdint>

#include "base/host_memory.h"
#include "client/plan/run_plan.h"

namespace elixir {

struct HostMemoryNeed {
  uint64_t states_bytes;  // what elixird reserves for all ranks of the node
  uint64_t module_bytes;  // the FP32 modules that all ranks build before they attach
};

// What a training by this plan takes on a node with so many of its ranks.
HostMemoryNeed host_memory_need(const RunPlan& plan, uint32_t local_ranks);

// Before the module is built: refuses a training that cannot fit, while refusing is still cheap.
// elixird decides for good, at attach. Rank 0 answers for the whole job, the others for their
// share, since memory that a faster rank has taken already must not count twice. kResourceExhausted
// says need, have and remedy.
Status check_host_memory(const HostMemoryNeed& need, uint32_t rank, uint32_t ranks,
                         const MemoryRoom& room = memory_room());

}  // namespace elixir
