#pragma once

// What lies in shared memory: the memfds of a session, shm/README.md is the same in prose. Every
// field has one writer.
//
//   control   ControlHeader, StepRecord[kStepRing], StepResult[kStepRing], ChunkRecord[n_chunks]
//   grads     n_chunks grad slots, of whole chunks or of shards      (written by the trainer)
//   params    n_chunks param slots of shard_numel elements           (written by elixird)
//   state     redo records, then master, exp_avg, exp_avg_sq         (written by elixird)
//   peer      n_gpu_chunks grad and param slots                      (written by the trainer)
//
// Sizes and offsets are in shm/shape.h.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace elixir::shm {

inline constexpr uint64_t kControlMagic = 0x4c52544358494c45;  // "ELIXCTRL", little endian

// Raise it when any struct or constant of this file, of shm/shape.h or of shm/messages.h changes.
inline constexpr uint32_t kLayoutVersion = 2;

// Steps whose records are kept. A trainer is never more than two steps ahead of elixird.
inline constexpr uint32_t kStepRing = 8;

inline constexpr size_t kCacheLine = 64;

// Why elixird ended a session; 0 while it lives. Values of elixir::Code.
using FaultCode = uint32_t;

struct ControlHeader {
  // Written by elixird before attach returns, constant afterwards.
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;
  uint64_t session_id;
  uint32_t rank;  // of this session among all of the job
  uint32_t ranks;
  uint32_t compute_type;  // elixir::ComputeType
  uint32_t n_chunks;
  uint64_t chunk_numel;
  uint64_t shard_numel;
  uint64_t reserved[1];

  // Written by the trainer.
  alignas(kCacheLine) std::atomic<uint32_t> posted_step;  // release: StepRecord[step] is complete
  std::atomic<uint32_t> barrier_arrived;  // release: what this rank wrote for others
  uint32_t trainer_reserved[14];

  // Written by elixird; each a futex word.
  alignas(kCacheLine) std::atomic<uint32_t> committed_step;  // every rank posted it: it will happen
  std::atomic<uint32_t> finished_step;                       // every chunk of it is updated
  std::atomic<FaultCode> fault;
  std::atomic<uint32_t> fault_rank;      // meaningful once fault != 0
  std::atomic<uint32_t> barrier_passed;  // release: every rank of the node has come to it
  uint32_t daemon_reserved[11];
};
static_assert(sizeof(ControlHeader) == 192);
static_assert(offsetof(ControlHeader, posted_step) == 64);
static_assert(offsetof(ControlHeader, committed_step) == 128);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The verdict of one rank on one step: hyperparameters and what it did. Written by the trainer
// before it stores posted_step; slot step % kStepRing.
struct StepRecord {
  uint32_t step;
  uint32_t decoupled;  // 1: AdamW, 0: Adam
  double lr, beta1, beta2, eps, weight_decay;
  double grad_scale;   // multiplies the sum of the ranks' gradients
  double metric;       // what the rank reported for this step, the loss as a rule
  uint64_t gathers;    // chunks copied into the rCache in this step
  uint64_t evictions;  // blocks taken from one chunk for another in this step
  uint64_t h2d_bytes, d2h_bytes;
  uint64_t device_bytes;  // what Elixir holds on the device now
  uint64_t reserved[3];
};
static_assert(sizeof(StepRecord) == 128);

// What became of one step. Written by elixird; slot step % kStepRing; `metric_mean` valid once
// committed_step >= step, `update_ns` once finished_step >= step.
struct StepResult {
  uint32_t step;
  uint32_t reserved_word;
  double metric_mean;      // mean over ranks, summed in rank order
  uint64_t update_ns;      // from commit to the last chunk's completion
  uint64_t updated_numel;  // parameters of all ranks updated in it
  uint64_t reserved[4];
};
static_assert(sizeof(StepResult) == 64);

// One chunk of one session. A cycle: param_step = s-1 -> the trainer fills the grad slot and
// stores grad_step = s -> workers -> param_step = s. Steps count from 1; param_step 0 holds the
// initial weights once the session is ready.
struct ChunkRecord {
  // Written by the trainer. Release; pairs with the acquire in daemon/dispatcher.
  alignas(kCacheLine) std::atomic<uint32_t> grad_step;
  uint32_t trainer_reserved[15];
  // Written by elixird. Release, then futex wake; pairs with the acquire in client/session.
  alignas(kCacheLine) std::atomic<uint32_t> param_step;
  uint32_t daemon_reserved[15];
};
static_assert(sizeof(ChunkRecord) == 128);
static_assert(offsetof(ChunkRecord, param_step) == 64);

}  // namespace elixir::shm
