#pragma once

// Computes sizes and offsets of a session's memory from a few numbers. Pure arithmetic; elixird and
// the client both use it.

#include <algorithm>
#include <cstdint>

#include "base/compute_type.h"
#include "base/enum_names.h"
#include "base/status.h"
#include "base/units.h"
#include "base/update_rule.h"
#include "shm/exchange.h"
#include "shm/layout.h"

namespace elixir::shm {

inline constexpr EnumName<Exchange> kExchangeNames[] = {{"host", Exchange::kHost},
                                                        {"collective", Exchange::kCollective}};
constexpr const char* exchange_name(Exchange exchange) { return name_in(kExchangeNames, exchange); }

// Every parameter and every chunk starts at a multiple of 128 elements: 256 bytes in 16-bit types.
inline constexpr uint64_t kAlignNumel = 128;
// Shards start at multiples of 64 elements: whole cache lines in every array.
inline constexpr uint64_t kShardAlignNumel = 64;
inline constexpr uint64_t kSectionAlignBytes = 4096;
// A gap before each array of `state`. Chunks usually have a power of two of elements, so without
// the gap all streams of the update would use the same sets of the L2 cache. Measured in BF16 with
// redo records: 0.70 Gparam/s per thread without it, 1.24 with it.
inline constexpr uint64_t kStaggerBytes = 5 * kSectionAlignBytes;

inline constexpr uint32_t kMaxLocalRanks = 64;  // on one node
inline constexpr uint32_t kMaxSwingRanks = 48;  // with swing chunks: 4 of kMaxFds descriptors each
inline constexpr uint32_t kMaxSwingLanes = 8;
inline constexpr uint32_t kMaxRanks = 4096;  // per job; kMaxLocalRanks with the host exchange
inline constexpr uint32_t kMaxChunks = 1u << 20;
inline constexpr uint64_t kMaxChunkNumel = 1ull << 36;
inline constexpr uint64_t kMaxJobNumel = 1ull << 44;  // 17.6 T elements
inline constexpr uint32_t kMaxParameters = 1u << 20;
inline constexpr uint64_t kSideBytes = 1 << 20;    // per rank, read by the node's other ranks
inline constexpr uint32_t kMaxWorkers = 128;       // also the number of redo records of a session
inline constexpr uint64_t kRedoRecordBytes = 640;  // holds an optim::RedoRecord

// The number of chunks that hold a parameter. A parameter longer than a chunk has a run of chunks
// to itself.
inline constexpr uint64_t chunks_for(uint64_t numel, uint64_t chunk_numel) {
  return numel <= chunk_numel ? 1 : (numel - 1) / chunk_numel + 1;
}

// Part of a message (messages.h). Equal on all ranks of a job.
struct Shape {
  ComputeType type = ComputeType::kFp32;
  Exchange exchange = Exchange::kHost;
  uint32_t ranks = 1;      // the job's ranks; each chunk has as many shards
  uint32_t n_moments = 2;  // FP32 arrays that the update rule keeps beside the master
  uint32_t n_chunks = 0;   // chunks with states in elixird: placed on the CPU, swing
  // Chunks placed on the GPU: trainers keep and update their states. Numbered from n_chunks on.
  uint32_t n_gpu_chunks = 0;
  // Chunks of frozen parameters: they have param slots, but no gradients and no states. Numbered
  // last.
  uint32_t n_frozen_chunks = 0;
  uint32_t n_parameters = 0;  // trained parameters, which come first in the parameter table
  // Spare slots in `params` and `state`. An early update writes into one, and the chunk lies there
  // once the update is kept (ChunkRecord::slot).
  uint32_t n_spare_slots = 0;
  // Swing chunks are the last of the n_chunks. Trainers can also write the memory of their states,
  // and each rank's trainer updates its shards. At most n_swing_lanes updates run at a time, each
  // in a lane with a spare slot. Each chunk takes the next lane, see swing_lane().
  uint32_t n_swing_chunks = 0;
  uint32_t n_swing_lanes = 0;
  uint32_t reserved = 0;
  uint64_t chunk_numel = 0;  // elements per chunk, a multiple of kAlignNumel

  uint32_t first_swing() const { return n_chunks - n_swing_chunks; }
  bool swings(uint32_t chunk) const { return chunk >= first_swing() && chunk < n_chunks; }
  // The lane that updates the chunk, the same in every step. A lane updates every n_swing_lanes-th
  // chunk, in their order. It writes the chunk's new states into its spare slot, and the chunk's
  // old slot becomes its spare slot. So all ranks know the slot of a chunk without a message.
  // Note: docs/design/elixir.md, "swing lanes".
  uint32_t swing_lane(uint32_t chunk) const { return (chunk - first_swing()) % n_swing_lanes; }
  uint32_t all_chunks() const { return n_chunks + n_gpu_chunks; }  // trained chunks
  uint32_t total_chunks() const { return all_chunks() + n_frozen_chunks; }
  bool on_gpu(uint32_t chunk) const { return chunk >= n_chunks && chunk < all_chunks(); }
  bool frozen(uint32_t chunk) const { return chunk >= all_chunks(); }

  // Initial values go through grad slots. A chunk placed on the CPU uses its own slot; a frozen
  // chunk has none and uses another chunk's. Frozen chunks are loaded first, then those placed on
  // the CPU, from 0 on. Slots follow one another in this order, so n_grad_slots() chunks in a row
  // have different slots.
  uint32_t n_grad_slots() const { return std::max(n_chunks, n_frozen_chunks > 0 ? 1u : 0u); }
  uint32_t load_slot(uint32_t chunk) const {
    ELIXIR_CHECK(chunk < total_chunks(), "chunk {} of {}", chunk, total_chunks());
    if (!frozen(chunk)) return chunk;
    const uint32_t frozen_before = (total_chunks() - chunk) % n_grad_slots();
    return (n_grad_slots() - frozen_before) % n_grad_slots();
  }

  // Elements from the start of one shard to the start of the next. The last shards may be shorter
  // or empty.
  uint64_t shard_numel() const {
    return round_up((chunk_numel + ranks - 1) / ranks, kShardAlignNumel);
  }
  // The elements [begin, end) of a chunk that `rank` keeps.
  uint64_t shard_begin(uint32_t rank) const { return std::min(rank * shard_numel(), chunk_numel); }
  uint64_t shard_end(uint32_t rank) const {
    return std::min((rank + 1) * shard_numel(), chunk_numel);
  }

  // The elements of all shards, one after the other: at least chunk_numel.
  uint64_t gathered_numel() const { return ranks * shard_numel(); }

  uint64_t chunk_bytes() const { return chunk_numel * element_bytes(type); }
  uint64_t shard_bytes() const { return shard_numel() * element_bytes(type); }
  // How many gradients of a shard lie in grad slots: one per rank, or, with the collective
  // exchange, only their sum.
  uint32_t shard_gradients() const { return exchange == Exchange::kHost ? ranks : 1; }
  // Bytes of the buffer for the gradients of a shard that a trainer updates: all shard_gradients(),
  // or instead their FP32 sum.
  uint64_t swing_grads_bytes() const {
    return std::max(shard_gradients() * shard_bytes(), shard_numel() * sizeof(float));
  }

  // Whether elixird publishes UpdateCounts, because each rank knows only its own gradients.
  bool tells_updates() const { return exchange == Exchange::kHost && ranks > 1; }

  // Bytes of a block on the device. The host exchange fills it with a whole chunk, the collective
  // exchange with all shards.
  uint64_t block_bytes() const {
    return (exchange == Exchange::kHost ? chunk_numel : gathered_numel()) * element_bytes(type);
  }
  // Bytes per element beside parameter and gradient: the bits that complete the master, and the
  // moments.
  uint64_t element_state_bytes() const { return master_bytes(type) + n_moments * sizeof(float); }
  // Bytes of a rank's shards of the chunks placed on the GPU; `sums`: including FP32 sums over
  // micro-steps.
  uint64_t gpu_chunks_bytes(bool sums) const {
    const uint64_t one = 2 * element_bytes(type) + element_state_bytes();
    return n_gpu_chunks * shard_numel() * (one + (sums ? sizeof(float) : 0));
  }

  // control
  uint64_t step_records_offset() const { return sizeof(ControlHeader); }
  uint64_t step_results_offset() const {
    return step_records_offset() + kStepRing * sizeof(StepRecord);
  }
  uint64_t update_results_offset() const {
    return step_results_offset() + kStepRing * sizeof(StepResult);
  }
  uint64_t folder_results_offset() const {
    return update_results_offset() + kStepRing * sizeof(UpdateResult);
  }
  uint64_t grad_records_offset() const {
    return folder_results_offset() + kFolderRing * sizeof(FolderResult);
  }
  uint64_t chunk_records_offset() const {
    return round_up(grad_records_offset() + n_grad_slots() * sizeof(GradRecord), kCacheLine);
  }
  uint64_t swing_records_offset() const {
    return chunk_records_offset() + n_grad_slots() * sizeof(ChunkRecord);
  }
  uint64_t swing_parameters_offset() const {
    return round_up(swing_records_offset() + n_swing_chunks * sizeof(SwingRecord), kCacheLine);
  }
  uint64_t update_counts_offset() const {
    const uint64_t told = n_swing_chunks > 0 ? n_parameters * sizeof(SwingParameter) : 0;
    return round_up(swing_parameters_offset() + told, kCacheLine);
  }
  uint64_t grad_groups_offset(uint32_t step) const {
    const uint64_t told = tells_updates() ? n_parameters * sizeof(UpdateCount) : 0;
    return round_up(update_counts_offset() + told, kCacheLine) +
           step % kStepRing * round_up(n_parameters, kCacheLine);
  }
  uint64_t control_bytes() const {
    return round_up(grad_groups_offset(kStepRing - 1) + n_parameters, kSectionAlignBytes);
  }

  // grads: chunk by chunk, whole chunks (host exchange) or this rank's shards; then the side memory
  uint64_t grad_slot_numel() const {
    return exchange == Exchange::kHost ? chunk_numel : shard_numel();
  }
  uint64_t grad_slot_offset(uint32_t chunk) const {
    return chunk * grad_slot_numel() * element_bytes(type);
  }
  // Side memory: bytes outside of chunks that a rank writes for the other ranks of its node.
  uint64_t side_bytes() const { return exchange == Exchange::kHost && ranks > 1 ? kSideBytes : 0; }
  uint64_t side_offset() const { return section_bytes(grad_slot_offset(n_grad_slots())); }
  uint64_t grads_bytes() const { return side_offset() + side_bytes(); }

  // Each slot holds this rank's shard of a chunk. Slots of params and state have the first numbers:
  // first slots of chunks, spare slots, then slots of frozen chunks (only in params). Slots of the
  // swing memory follow: first slots of swing chunks, then the lanes' spare slots.
  uint32_t n_state_slots() const { return first_swing() + n_spare_slots; }
  uint32_t n_param_slots() const { return n_state_slots() + n_frozen_chunks; }
  uint32_t n_swing_slots() const { return n_swing_chunks + n_swing_lanes; }
  uint32_t n_slots() const { return n_param_slots() + n_swing_slots(); }
  bool in_swing_memory(uint32_t slot) const { return slot >= n_param_slots(); }
  uint32_t first_slot(uint32_t chunk) const {
    if (frozen(chunk)) return chunk - all_chunks() + n_state_slots();
    return swings(chunk) ? chunk - first_swing() + n_param_slots() : chunk;
  }
  uint32_t first_swing_spare(uint32_t lane) const {
    return n_param_slots() + n_swing_chunks + lane;
  }

  // params: slot by slot
  uint64_t param_slot_offset(uint32_t slot) const { return slot * shard_bytes(); }
  uint64_t params_bytes() const { return section_bytes(param_slot_offset(n_param_slots())); }

  // state: redo records, then the arrays of masters and moments, slot by slot
  uint64_t states_numel() const { return n_state_slots() * shard_numel(); }
  uint64_t redo_offset(uint32_t worker) const { return worker * kRedoRecordBytes; }
  uint64_t master_offset() const {
    return uint64_t{kMaxWorkers} * kRedoRecordBytes + kStaggerBytes;
  }
  uint64_t moment_offset(uint32_t moment) const {
    const uint64_t masters_end = master_offset() + states_numel() * master_bytes(type);
    const uint64_t stride_bytes =
        round_up(states_numel() * sizeof(float), kSectionAlignBytes) + kStaggerBytes;
    return round_up(masters_end, kSectionAlignBytes) + kStaggerBytes + moment * stride_bytes;
  }
  uint64_t state_bytes() const { return moment_offset(n_moments) - kStaggerBytes; }

  // sums: FP32 sums of a step's gradients over its micro-steps, chunk by chunk
  uint64_t sums_bytes() const { return section_bytes(n_chunks * shard_numel() * sizeof(float)); }

  // The image of a rank's shard of a chunk: param, master and moments, one after the other. A
  // trainer stages chunks on the GPU in this form, and elixird keeps its shadows in it.
  uint64_t image_master_offset() const { return shard_bytes(); }
  uint64_t image_moment_offset(uint32_t moment) const {
    return image_master_offset() + shard_numel() * (master_bytes(type) + moment * sizeof(float));
  }
  uint64_t image_bytes() const { return image_moment_offset(n_moments); }
  uint64_t staging_bytes() const { return section_bytes(image_bytes()); }  // one image's memfd

  // swing: slot by slot. Each holds the image of a shard, so one copy moves it up or down.
  uint64_t swing_slot_bytes() const { return round_up(image_bytes(), kSectionAlignBytes); }
  uint64_t swing_slot_offset(uint32_t slot) const {
    return (slot - n_param_slots()) * swing_slot_bytes();
  }
  uint64_t swing_bytes() const { return n_swing_slots() * swing_slot_bytes(); }  // 0: no memfd

  // All memfds of one session except sums, which has no pages until a step has several micro-steps.
  uint64_t session_bytes() const {
    return control_bytes() + grads_bytes() + params_bytes() + state_bytes() + swing_bytes();
  }

  bool operator==(const Shape&) const = default;

 private:
  // A memfd has at least one page.
  static uint64_t section_bytes(uint64_t bytes) {
    return std::max(round_up(bytes, kSectionAlignBytes), kSectionAlignBytes);
  }
};
static_assert(sizeof(Shape) == 56);

// The number of descriptors that RanksReady brings for each rank.
constexpr uint32_t descriptors_of_rank(const Shape& shape) {
  if (shape.n_swing_chunks == 0) return shape.side_bytes() > 0 ? 3 : 2;
  return shape.exchange == Exchange::kHost ? 4 : 3;
}

// Rejects shapes outside the limits above, so that no sum or product of this file overflows.
Status check_shape(const Shape& shape);

}  // namespace elixir::shm
