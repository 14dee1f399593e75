// Data path, hops 4 and 5 of 6, of swing chunks: what client/exchange/swing_runner has of elixird.

#include "base/check.h"
#include "client/session/control_channel.h"
#include "client/session/session.h"

namespace elixir {

shm::SwingRecord& Session::swing_record(uint32_t chunk) const {
  ELIXIR_CHECK(shape_.swings(chunk), "chunk {} is not a swing chunk", chunk);
  auto* records =
      reinterpret_cast<shm::SwingRecord*>(control_->data() + shape_.swing_records_offset());
  return records[chunk - shape_.first_swing()];
}

Status Session::wait_swing(uint32_t chunk, uint32_t step) {
  const shm::ChunkRecord& record = chunk_record(chunk);
  return wait_word({record.swing_step, chunk_record(chunk).waiters, step,
                    "elixird to let a swing chunk be updated", step});
}

bool Session::may_swing(uint32_t chunk, uint32_t step) const {
  // Acquire: pairs with elixird's release, as in wait_swing().
  return chunk_record(chunk).swing_step.load(std::memory_order_acquire) >= step;
}

bool Session::swings_sums(uint32_t chunk) const {
  // Relaxed: written before the swing_step that wait_swing() has seen.
  return chunk_record(chunk).swing_sums.load(std::memory_order_relaxed) != 0;
}

Session::SwingParameter Session::swing_parameter(uint32_t parameter) const {
  ELIXIR_CHECK(shape_.n_swing_chunks > 0 && parameter < shape_.n_parameters, "parameter {} of {}",
               parameter, shape_.n_parameters);
  const auto* all = reinterpret_cast<const shm::SwingParameter*>(control_->data() +
                                                                 shape_.swing_parameters_offset());
  // Relaxed: as above.
  return {static_cast<uint8_t>(all[parameter].group.load(std::memory_order_relaxed)),
          all[parameter].updates.load(std::memory_order_relaxed)};
}

std::byte* Session::swing_image(uint32_t slot) const {
  ELIXIR_CHECK(shape_.in_swing_memory(slot) && slot < shape_.n_slots(), "slot {} of {}", slot,
               shape_.n_slots());
  return ranks_[options_.local_rank].swing->data() + shape_.swing_slot_offset(slot);
}

const std::byte* Session::shard_grads(uint32_t chunk, uint32_t local_rank) const {
  if (shape_.exchange != shm::Exchange::kHost) return grad_slot(chunk);
  // Its own where they are page-locked.
  const bool own = local_rank == options_.local_rank;
  const shm::Segment& grads = own ? *grads_ : *ranks_[local_rank].grads;
  return grads.data() + shape_.grad_slot_offset(chunk) +
         shape_.shard_begin(options_.rank) * element_bytes(shape_.type);
}

Status Session::swing_updated(uint32_t chunk, uint32_t slot, uint32_t step) {
  shm::SwingRecord& record = swing_record(chunk);
  swung_.store(step, std::memory_order_release);
  record.slot.store(slot, std::memory_order_relaxed);
  // Release: the slot's number and what lies there; pairs with the acquire in daemon/swing.
  record.step.store(step, std::memory_order_release);
  shm::SwingUpdated doorbell{};
  doorbell.chunk = chunk;
  const MutexLock lock(ring_mutex_);
  // Where the model's thread has the channel, waiting for ranks that may wait for this chunk, a
  // tick of elixird's finds what was written.
  return in_call_ ? Status() : control_channel_->post(doorbell);
}

}  // namespace elixir
