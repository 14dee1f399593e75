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
  const bool fits = shape_.swings(chunk) ? shape_.in_swing_memory(slot) && slot < shape_.n_slots()
                                         : slot < shape_.n_state_slots();
  ELIXIR_CHECK(fits, "chunk {} lies in slot {} of {}", chunk, slot, shape_.n_slots());
  return slot;
}

const std::byte* Session::param_shard(uint32_t chunk, uint32_t local_rank) const {
  ELIXIR_CHECK(local_rank < ranks_.size() && chunk < shape_.total_chunks() && !shape_.on_gpu(chunk),
               "chunk {} of rank {} has no param slot", chunk, local_rank);
  const RankMemory& rank = ranks_[local_rank];
  if (shape_.swings(chunk)) return rank.swing->data() + shape_.swing_slot_offset(slot(chunk));
  return rank.params.data() + shape_.param_slot_offset(slot(chunk));
}

const std::byte* Session::master_shard(uint32_t chunk, uint32_t local_rank) const {
  if (shape_.swings(chunk)) return param_shard(chunk, local_rank) + shape_.image_master_offset();
  return ranks_[local_rank].state.data() + shape_.master_offset() +
         slot(chunk) * shape_.shard_numel() * master_bytes(shape_.type);
}

const float* Session::moment_shard(uint32_t chunk, uint32_t local_rank, uint32_t moment) const {
  if (shape_.swings(chunk)) {
    return reinterpret_cast<const float*>(param_shard(chunk, local_rank) +
                                          shape_.image_moment_offset(moment));
  }
  const std::byte* const first = ranks_[local_rank].state.data() + shape_.moment_offset(moment);
  return reinterpret_cast<const float*>(first) + slot(chunk) * shape_.shard_numel();
}

// Shards lie by rank among all of the job; the host exchange has no others.
uint64_t Session::shard_numel_of(uint32_t local_rank) const {
  const uint32_t shard = local_rank == options_.local_rank ? options_.rank : local_rank;
  return shape_.shard_end(shard) - shape_.shard_begin(shard);
}

void Session::read_masters(uint32_t chunk, uint32_t local_rank, float* values) const {
  read_masters(chunk, local_rank, 0, shard_numel_of(local_rank), values);
}

void Session::read_masters(uint32_t chunk, uint32_t local_rank, uint64_t first, uint64_t numel,
                           float* values) const {
  ELIXIR_CHECK(chunk < shape_.n_chunks && first + numel <= shard_numel_of(local_rank),
               "elixird keeps no masters {} to {} of chunk {}", first, first + numel, chunk);
  optim::read_master(
      shape_.type, param_shard(chunk, local_rank) + first * element_bytes(shape_.type),
      master_shard(chunk, local_rank) + first * master_bytes(shape_.type), numel, values);
}

void Session::read_moment(uint32_t chunk, uint32_t local_rank, uint32_t moment,
                          float* values) const {
  read_moment(chunk, local_rank, moment, 0, shard_numel_of(local_rank), values);
}

void Session::read_moment(uint32_t chunk, uint32_t local_rank, uint32_t moment, uint64_t first,
                          uint64_t numel, float* values) const {
  ELIXIR_CHECK(chunk < shape_.n_chunks && moment < shape_.n_moments &&
                   first + numel <= shard_numel_of(local_rank),
               "elixird keeps no moment {} of chunk {}", moment, chunk);
  if (numel == 0) return;
  std::memcpy(values, moment_shard(chunk, local_rank, moment) + first, numel * sizeof(float));
}

Session::UpdateTimes Session::update_times(uint32_t chunk) const {
  const shm::ChunkRecord& record = chunk_record(chunk);
  return {record.update_begin_ns.load(std::memory_order_relaxed),
          record.update_end_ns.load(std::memory_order_relaxed)};
}

const float* Session::grad_sum(uint32_t chunk) const {
  return reinterpret_cast<const float*>(sums_->data()) + chunk * shape_.shard_numel();
}

}  // namespace elixir
