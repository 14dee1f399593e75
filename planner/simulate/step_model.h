#pragma once

// A training step as the simulator sees it: operators that need chunks, chunks that are moved,
// gathered and updated, and the rates of all this. Symmetric ranks count as one. So rates are those
// of all GPUs of the node together.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/choices.h"
#include "shm/shape.h"

namespace elixir::planner {

// The place of a chunk's states, and so the side that updates them. kSwing: they are in host
// memory. For the update they go up to the GPU with the gradients, and then come down again (Deep
// Optimizer States, Middleware 2024).
enum class Placement : uint8_t { kCpu, kGpu, kSwing };

using shm::Exchange;

// Blocks in which a chunk's gradients come together on a device. One is filled while the other goes
// down or is reduced.
inline constexpr uint32_t kGradBlocks = 2;

// If copies are done at once, gradients go down to the host exchange without a block. Collectives
// need blocks. Gradients of chunks placed on the only GPU stay there.
inline uint32_t grad_blocks(const shm::Shape& shape, bool copies_at_once) {
  if (copies_at_once && shape.exchange == Exchange::kHost) return 0;
  return std::min(kGradBlocks, shape.ranks == 1 ? shape.n_chunks : shape.all_chunks());
}

// Swing chunks under way at a time: one comes up, one is updated, one goes down.
inline constexpr uint32_t kSwingLanes = 3;

// GPU memory for swing chunks: a shard's states and gradients per lane.
inline uint64_t swing_buffer_bytes(const shm::Shape& shape) {
  return shape.n_swing_lanes * (shape.image_bytes() + shape.swing_grads_bytes());
}

struct StepOperator {
  double compute_s = 0;
  std::vector<uint32_t> chunks = {};  // distinct; all are gathered before it begins
  // Chunks that receive gradients when it ends. A chunk's gradient is complete after the last
  // operator that names the chunk.
  std::vector<uint32_t> gradients = {};
  // Elements that each of them receives. Empty: all elements of a chunk come when its gradient is
  // complete.
  std::vector<uint64_t> gradient_numel = {};
};

struct StepChunk {
  Placement placement = Placement::kCpu;
  uint64_t numel = 0;  // parameters in it
  bool frozen = false;
  // This many chunks, from this one on, hold one parameter together. They come into a long block as
  // one, and operators name the first. 1: it holds whole parameters. 0: it continues the run of the
  // one before.
  uint32_t run = 1;
};

// The machine's rates per second. A rate of 0 takes no time.
struct StepRates {
  double h2d_bytes = 0, d2h_bytes = 0;
  double joint_bytes = 0;  // both directions together; 0: no limit
  double g2g_bytes = 0;
  double cpu_update_numel = 0, gpu_update_numel = 0;
  double copy_latency_s = 0;  // for each copy over the link
  // Host memory, which copies over the link and CPU workers' updates share. 0: no limit.
  double dram_bytes = 0;
};

// The rate of an update out of place, as a share of the rate in place. This is elixird's kernel,
// with stores that go past the caches. Measured: 0.94 to 0.96 in BF16, 0.82 to 0.86 in FP16 and
// FP32 (bench/RESULTS.md).
inline constexpr double kEarlyUpdateShare = 0.91;

// How the runtime overlaps work.
struct StepRuntime {
  UpdateMode update = UpdateMode::kDeferred;
  uint32_t spare_slots = 0;  // with kEarly: the most chunks of a step that are updated early
  // The most chunks that are fetched ahead of the operator that needs them, as blocks allow.
  uint32_t fetch_ahead = UINT32_MAX;
  // The host runs ahead of the compute stream, as with CUDA. A fetch starts as soon as its block
  // has room and its chunk is updated. If false, the host is the compute stream, as in HostDevice,
  // and fetches start when operators do.
  bool host_ahead = true;
  // Blocks in which a chunk's gradients come together before they go down in one copy, or are
  // reduced (client/exchange/grad_blocks.h). If an operator brings gradients of another chunk and
  // no block is free, the work after it waits for one. 0: gradients go down as they come.
  uint32_t grad_blocks = 0;
  // Policy paper: a copy over the link keeps the compute stream waiting for (1 - copies_hidden) of
  // its time, even if nothing waits for the chunk. 1: the compute stream waits only for chunks that
  // it needs.
  double copies_hidden = 1;
  // Policy paper: a chunk that loses its block is copied down again.
  bool evictions_copy_down = false;
};

// Activations of one region that go to host memory and come back (client/train/activation_store.h).
// They go down once operator `put_after` is over, and the operators behind wait until the parcel
// before is down. When operator `get_before` begins, the parcel before begins to come up.
struct StepParcel {
  uint32_t put_after = 0, get_before = 0;
  double bytes = 0;
};

struct StepModel {
  std::vector<StepOperator> operators;  // forward, then backward
  uint32_t backward_begin = 0;          // the first operator of backward
  std::vector<StepChunk> chunks;
  // Of each pass, in forward's order. The last one of a pass stays on the device.
  std::vector<StepParcel> parcels = {};
  uint32_t parcels_of_pass = 0;
  uint64_t chunk_numel = 0;
  uint32_t dtype_bytes = 2;  // per parameter or gradient on the link
  // State bytes per element, beside the parameter. Both go up and down with a swing chunk.
  uint32_t state_bytes = 12;
  // Bytes of host memory that a CPU worker reads and writes to update an element.
  uint32_t update_bytes = 26;
  uint32_t ranks = 1;
  bool collective = false;   // ranks exchange by collectives, else through the host
  bool accumulates = false;  // gradients of several backward passes are summed in FP32
  uint32_t rcache_blocks = 0;
  uint32_t long_blocks = 0;
  StepRates rates;
  StepRuntime runtime;
};

}  // namespace elixir::planner
