#include "client/plan/host_memory_check.h"

#include "base/units.h"

namespace elixir {

HostMemoryNeed host_memory_need(const RunPlan& plan, uint32_t local_ranks) {
  return {local_ranks * plan.shape.session_bytes(),
          local_ranks * shm::total_numel(plan.chunks.places) * sizeof(float)};
}

Status check_host_memory(const HostMemoryNeed& need, uint32_t rank, uint32_t ranks,
                         const MemoryRoom& room) {
  const uint64_t job_bytes = need.states_bytes + need.module_bytes;
  if ((rank == 0 ? job_bytes : job_bytes / ranks) <= room.available_bytes) return Status();
  return error(
      Code::kResourceExhausted,
      "the training needs {} of host memory ({} for the states in elixird, {} while {} rank(s) "
      "build the FP32 model); {} are available ({}): train a smaller model, use bf16 or fewer "
      "ranks, or make room (ELIXIR_MEMORY_ROOM where the machine has more than it says)",
      format_bytes(job_bytes), format_bytes(need.states_bytes), format_bytes(need.module_bytes),
      ranks, format_bytes(room.available_bytes), room.limit);
}

}  // namespace elixir
