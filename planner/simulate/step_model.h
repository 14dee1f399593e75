#pragma once

// A training step as the simulator sees it: operators that need chunks, chunks that are moved,
// gathered and updated, and how fast each is done. Symmetric ranks are one: rates are those of all
// GPUs of the node together.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/choices.h"
#include "shm/shape.h"

namespace elixir::planner {

// Where a chunk's states live, and who updates them. kSwing: in host memory, and they go up to the
// GPU for the update, with the gradients, and down again (Deep Optimizer States, Middleware 2024).
enum class Placement : uint8_t { kCpu, kGpu, kSwing };

using shm::Exchange;

// In which gradients of a chunk come together on a device: one is filled while the other goes down
// or is reduced.
inline constexpr uint32_t kGradBlocks = 2;

// Where copies are done at once gradients go down without a block, but not to a collective. Those
// of chunks placed on the only GPU stay where they come.
inline uint32_t grad_blocks(const shm::Shape& shape, bool copies_at_once) {
  if (copies_at_once && shape.exchange == Exchange::kHost) return 0;
  return std::min(kGradBlocks, shape.ranks == 1 ? shape.n_chunks : shape.all_chunks());
}

// Swing chunks under way at a time: one comes up, one is updated, one goes down.
inline constexpr uint32_t kSwingLanes = 3;

// Of a GPU, for them: a shard's states, and its gradients.
inline uint64_t swing_buffer_bytes(const shm::Shape& shape) {
  return shape.n_swing_lanes * (shape.image_bytes() + shape.swing_grads_bytes());
}

struct StepOperator {
  double compute_s = 0;
  std::vector<uint32_t> chunks = {};  // distinct; all are gathered before it begins
  // Chunks to which gradients come when it ends. A chunk's is complete with the last operator that
  // names it.
  std::vector<uint32_t> gradients = {};
  // How many elements of each come then. Empty: all of the chunk's, when it is complete.
  std::vector<uint64_t> gradient_numel = {};
};

struct StepChunk {
  Placement placement = Placement::kCpu;
  uint64_t numel = 0;  // parameters in it
  bool frozen = false;
  // So many, from it on, hold one parameter together and come into a long block as one, named by
  // operators by the first; 1: it holds whole ones; 0: it goes on with that of the one before.
  uint32_t run = 1;
};

// What the machine does in a second. 0 for a rate: takes no time.
struct StepRates {
  double h2d_bytes = 0, d2h_bytes = 0;
  double joint_bytes = 0;  // of both directions together; 0: no limit
  double g2g_bytes = 0;
  double cpu_update_numel = 0, gpu_update_numel = 0;
  double copy_latency_s = 0;  // of each copy over the link
  // Host memory: copies over the link and CPU workers' updates share it. 0: no limit.
  double dram_bytes = 0;
};

// An update out of place, as a share of the rate in place: elixird's kernel, with stores that go
// past the caches. Measured: 0.94 to 0.96 in BF16, 0.82 to 0.86 in FP16 and FP32
// (bench/RESULTS.md).
inline constexpr double kEarlyUpdateShare = 0.91;

// What the runtime overlaps.
struct StepRuntime {
  UpdateMode update = UpdateMode::kDeferred;
  uint32_t spare_slots = 0;  // with kEarly: chunks of a step that may be updated early
  // Chunks brought ahead of the operator that needs them, at most; as blocks allow.
  uint32_t fetch_ahead = UINT32_MAX;
  // The host runs ahead of the compute stream, as with CUDA: a fetch starts as soon as its block
  // has room and its chunk is updated. false: the host is the compute stream, as HostDevice has it,
  // and fetches start where operators do.
  bool host_ahead = true;
  // Blocks in which gradients of a chunk come together before they go down in one copy, or are
  // reduced (client/exchange/grad_blocks.h). What follows an operator that brings gradients of
  // another chunk waits until a block is free. 0: gradients go down as they come.
  uint32_t grad_blocks = 0;
  // A copy over the link keeps the compute stream waiting for (1 - copies_hidden) of its time, even
  // where nothing waits for the chunk: policy paper. 1: only what is waited for is waited for.
  double copies_hidden = 1;
  // A chunk that loses its block is copied down again: policy paper.
  bool evictions_copy_down = false;
};

struct StepModel {
  std::vector<StepOperator> operators;  // forward, then backward
  uint32_t backward_begin = 0;          // the first operator of backward
  std::vector<StepChunk> chunks;
  uint64_t chunk_numel = 0;
  uint32_t dtype_bytes = 2;  // of parameters and gradients on the link
  // Of an element, beside the parameter. Both go up and down with a swing chunk.
  uint32_t state_bytes = 12;
  // Of host memory, that a CPU worker reads and writes for an element's update.
  uint32_t update_bytes = 26;
  uint32_t ranks = 1;
  bool collective = false;   // they exchange by collectives, else through the host
  bool accumulates = false;  // gradients of several backward passes are summed in FP32
  uint32_t rcache_blocks = 0;
  uint32_t long_blocks = 0;
  StepRates rates;
  StepRuntime runtime;
};

}  // namespace elixir::planner
