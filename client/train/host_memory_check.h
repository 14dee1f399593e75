#pragma once

#include <cstdint>
#include <span>

#include "base/compute_type.h"
#include "base/host_memory.h"
#include "client/chunk/chunk_plan.h"

namespace elixir {

struct HostMemoryNeed {
  uint64_t states_bytes;  // what elixird reserves for all ranks
  uint64_t module_bytes;  // the FP32 modules that all ranks build before they attach
};

// What a training of these parameters takes on this node. Errors as of plan_chunks.
Result<HostMemoryNeed> host_memory_need(std::span<const ParameterSize> parameters, ComputeType type,
                                        uint64_t chunk_numel, uint32_t ranks);

// Before the module is built: refuses a training that cannot fit, while refusing is still cheap.
// elixird decides for good, at attach. Rank 0 answers for the whole job, the others for their
// share, since memory that a faster rank has taken already must not count twice. kResourceExhausted
// says need, have and remedy.
Status check_host_memory(const HostMemoryNeed& need, uint32_t rank, uint32_t ranks,
                         const MemoryRoom& room = memory_room());

}  // namespace elixir
