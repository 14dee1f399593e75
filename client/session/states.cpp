// Where chunks lie in a session's memory, and what is read there.

#include <cstring>

#include "base/check.h"
#include "client/session/session.h"
#include "optim_cpu/master.h"

namespace elixir {

uint32_t Session::slot(uint32_t chunk) const {
  if (shape_.frozen(chunk)) return shape_.first_slot(chunk);
  // Relaxed: written before the param_step that the caller has waited for.
  const uint32_t slot = chunk_record(chunk).slot.load(std::memory_order_relaxed);
  ELIXIR_CHECK(slot < shape_.n_state_slots(), "chunk {} lies in slot {} of {}", chunk, slot,
               shape_.n_state_slots());
  return slot;
}

const std::byte* Session::param_shard(uint32_t chunk, uint32_t local_rank) const {
  ELIXIR_CHECK(local_rank < ranks_.size() && chunk < shape_.total_chunks() && !shape_.on_gpu(chunk),
               "chunk {} of rank {} has no param slot", chunk, local_rank);
  return ranks_[local_rank].params.data() + shape_.param_slot_offset(slot(chunk));
}

void Session::read_masters(uint32_t chunk, uint32_t local_rank, float* values) const {
  // Shards lie by rank among all of the job; the host exchange has no others.
  ELIXIR_CHECK(chunk < shape_.n_chunks, "elixird keeps no masters of chunk {}", chunk);
  const uint32_t shard = local_rank == options_.local_rank ? options_.rank : local_rank;
  const std::byte* const state = ranks_[local_rank].state.data();
  const uint64_t first = slot(chunk) * shape_.shard_numel();
  optim::read_master(shape_.type, param_shard(chunk, local_rank),
                     state + shape_.master_offset() + first * master_bytes(shape_.type),
                     shape_.shard_end(shard) - shape_.shard_begin(shard), values);
}

void Session::read_moment(uint32_t chunk, uint32_t local_rank, uint32_t moment,
                          float* values) const {
  ELIXIR_CHECK(chunk < shape_.n_chunks && moment < shape_.n_moments,
               "elixird keeps no moment {} of chunk {}", moment, chunk);
  const uint32_t shard = local_rank == options_.local_rank ? options_.rank : local_rank;
  const uint64_t numel = shape_.shard_end(shard) - shape_.shard_begin(shard);
  if (numel == 0) return;
  const std::byte* const first = ranks_[local_rank].state.data() + shape_.moment_offset(moment) +
                                 slot(chunk) * shape_.shard_numel() * sizeof(float);
  std::memcpy(values, first, numel * sizeof(float));
}

}  // namespace elixir
