#pragma once

// The code's assumptions about a Shape that check_shape() accepts, computed with twice the bits.

#include "base/check.h"
#include "shm/shape.h"

namespace elixir::fuzz {

inline void check_same(const char* what, uint64_t have, unsigned __int128 wide) {
  ELIXIR_CHECK(wide >> 63 == 0, "{} needs more than 63 bits", what);
  ELIXIR_CHECK(have == static_cast<uint64_t>(wide), "{} overflowed: {}", what, have);
}

inline void check_shards(const shm::Shape& shape) {
  ELIXIR_CHECK(shape.shard_begin(0) == 0, "the first shard begins at {}", shape.shard_begin(0));
  const uint32_t last = shape.ranks - 1;
  for (const uint32_t rank : {0u, last / 2, last}) {
    ELIXIR_CHECK(shape.shard_begin(rank) <= shape.shard_end(rank), "shard {}", rank);
    ELIXIR_CHECK(shape.shard_begin(rank) % shm::kShardAlignNumel == 0 ||
                     shape.shard_begin(rank) == shape.chunk_numel,
                 "shard {} begins at {}", rank, shape.shard_begin(rank));
    if (rank < last) {
      ELIXIR_CHECK(shape.shard_end(rank) == shape.shard_begin(rank + 1), "a gap after {}", rank);
    }
  }
  ELIXIR_CHECK(shape.shard_end(last) == shape.chunk_numel, "the last shard ends at {} of {}",
               shape.shard_end(last), shape.chunk_numel);
  check_same("gathered_numel", shape.gathered_numel(),
             static_cast<unsigned __int128>(shape.ranks) * shape.shard_numel());
  ELIXIR_CHECK(shape.gathered_numel() >= shape.chunk_numel, "shards hold less than the chunk");
}

inline void check_slots(const shm::Shape& shape) {
  if (shape.total_chunks() == shape.n_gpu_chunks) return;
  for (const uint32_t chunk : {0u, shape.n_chunks, shape.all_chunks(), shape.total_chunks() - 1}) {
    if (chunk >= shape.total_chunks()) continue;
    ELIXIR_CHECK(shape.on_gpu(chunk) + shape.frozen(chunk) + (chunk < shape.n_chunks) == 1,
                 "chunk {} is of more than one kind, or of none", chunk);
    if (shape.on_gpu(chunk)) continue;
    ELIXIR_CHECK(shape.load_slot(chunk) < shape.n_grad_slots(), "slot {} of {}",
                 shape.load_slot(chunk), shape.n_grad_slots());
    const uint32_t slot = shape.first_slot(chunk);
    ELIXIR_CHECK(slot < shape.n_slots(), "chunk {} lies in slot {} of {}", chunk, slot,
                 shape.n_slots());
    ELIXIR_CHECK(shape.in_swing_memory(slot) == shape.swings(chunk), "slot {} of chunk {}", slot,
                 chunk);
    if (shape.swings(chunk)) {
      ELIXIR_CHECK(shape.swing_slot_offset(slot) + shape.image_bytes() <= shape.swing_bytes(),
                   "the slot of chunk {} ends behind the swing memory", chunk);
    } else {
      ELIXIR_CHECK(shape.param_slot_offset(slot) + shape.shard_bytes() <= shape.params_bytes(),
                   "the param slot of chunk {} ends behind params", chunk);
    }
    const uint64_t slot_end = shape.grad_slot_offset(shape.load_slot(chunk) + 1);
    ELIXIR_CHECK(slot_end <= shape.grads_bytes(), "a grad slot ends behind grads");
  }
}

// REQUIRES: check_shape(shape) accepts the shape.
inline void check_shape_promises(const shm::Shape& shape) {
  using Wide = unsigned __int128;
  const Wide chunks = Wide{shape.n_chunks} + shape.n_gpu_chunks + shape.n_frozen_chunks;
  check_same("total_chunks", shape.total_chunks(), chunks);
  check_shards(shape);
  check_slots(shape);
  const Wide element = element_bytes(shape.type), shard = shape.shard_numel();
  check_same("chunk_bytes", shape.chunk_bytes(), Wide{shape.chunk_numel} * element);
  check_same("states_numel", shape.states_numel(),
             (Wide{shape.first_swing()} + shape.n_spare_slots) * shard);
  ELIXIR_CHECK(Wide{shape.swing_bytes()} >=
                   Wide{shape.n_swing_slots()} * shard * (element + shape.element_state_bytes()),
               "swing memory of {} bytes", shape.swing_bytes());
  check_same("gpu_chunks_bytes", shape.gpu_chunks_bytes(true),
             Wide{shape.n_gpu_chunks} * shard *
                 (2 * element + shape.element_state_bytes() + sizeof(float)));
  const Wide least = Wide{shape.n_chunks} * shard * (element + shape.element_state_bytes());
  ELIXIR_CHECK(Wide{shape.session_bytes()} >= least, "a session of {} bytes",
               shape.session_bytes());
  // A node has at most kMaxLocalRanks ranks. The admission of a job adds up their bytes.
  const Wide job = Wide{shape.session_bytes()} + shape.sums_bytes();
  ELIXIR_CHECK((job * shm::kMaxLocalRanks) >> 63 == 0, "a job of more than 2^63 bytes");
  for (uint32_t moment = 1; moment < shape.n_moments; ++moment) {
    const uint64_t end = shape.moment_offset(moment - 1) + shape.states_numel() * sizeof(float);
    ELIXIR_CHECK(end <= shape.moment_offset(moment), "moments {} and {} overlap", moment - 1,
                 moment);
  }
  const uint64_t masters_end =
      shape.master_offset() + shape.states_numel() * master_bytes(shape.type);
  ELIXIR_CHECK(masters_end <= shape.moment_offset(0), "masters and moments overlap");
  ELIXIR_CHECK(shape.redo_offset(shm::kMaxWorkers) <= shape.master_offset(), "redo records");
  const uint64_t states_end =
      shape.moment_offset(shape.n_moments - 1) + shape.states_numel() * sizeof(float);
  ELIXIR_CHECK(states_end <= shape.state_bytes(), "moments end behind state");
  ELIXIR_CHECK(shape.chunk_records_offset() % shm::kCacheLine == 0, "chunk records");
}

}  // namespace elixir::fuzz
