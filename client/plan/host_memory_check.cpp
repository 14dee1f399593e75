#include "client/plan/host_memory_check.h"

#include "base/check.h"
#include "base/units.h"

namespace elixir {

uint64_t host_states_bytes(const RunPlan& plan, uint32_t local_ranks) {
  return local_ranks * plan.host_bytes();
}

Status check_host_memory(const RunPlan& plan, uint32_t local_rank, uint32_t local_ranks,
                         const MemoryRoom& room) {
  ELIXIR_CHECK(local_rank < local_ranks, "rank {} of {} on this node", local_rank, local_ranks);
  const uint64_t states_bytes = host_states_bytes(plan, local_ranks);
  const uint64_t waiting_bytes = local_ranks * plan.waiting_bytes;
  const uint64_t trainers_bytes = local_ranks * plan.trainer_bytes;
  const uint64_t activations_bytes = local_ranks * plan.activation_bytes.value_or(0);
  const uint64_t job_bytes = states_bytes + waiting_bytes + activations_bytes + trainers_bytes;
  if ((local_rank == 0 ? job_bytes : job_bytes / local_ranks) <= room.available_bytes) {
    return Status();
  }
  return error(
      Code::kResourceExhausted,
      "the training needs {} of host memory, of which {} are for the states of {} rank(s) in "
      "elixird{}{}, and {} for the trainers themselves; {} are available ({}): train a smaller "
      "model "
      "or a smaller --batch, use bf16 or fewer ranks{}, or make room (ELIXIR_MEMORY_ROOM where the "
      "machine has more than it says)",
      format_bytes(job_bytes), format_bytes(states_bytes), local_ranks,
      waiting_bytes == 0 ? ""
                         : fmt::format(", {} for gradients that wait", format_bytes(waiting_bytes)),
      activations_bytes == 0
          ? ""
          : fmt::format(", {} for activations (--activations)", format_bytes(activations_bytes)),
      format_bytes(trainers_bytes), format_bytes(room.available_bytes), room.limit,
      plan.shape.n_spare_slots > 0 ? ", fewer --spare-slots or --update deferred" : "");
}

}  // namespace elixir
