#pragma once

// How ranks share a chunk: each keeps a shard of it (shm::Shape::shard_begin), all contribute
// gradients. Two ways: host_exchange.h and collective_exchange.h. Chunks are numbered as in
// shm::Shape: first those whose states elixird keeps (home cpu), then those whose states lie on the
// device (home gpu, client/device/resident_states.h).
//
// Used by the thread that runs the model (autograd's, while that one waits). Where a function says
// "all ranks", every rank must make the same calls in the same order. Throws elixir::Error;
// kPeerLost names a rank that died.

#include <cstddef>
#include <cstdint>

#include "client/device/device.h"

namespace elixir {

// Where the gradients of a chunk are to be put: chunk_numel elements of the compute type.
struct GradTarget {
  std::byte* memory = nullptr;
  bool on_device = false;     // else host memory, written by Device::download on Stream::kDownload
  bool keeps_rounds = false;  // of earlier rounds of this step: add to it
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Bytes of a block that can hold a gathered chunk: chunk_bytes, or more.
  virtual size_t block_bytes() const = 0;

  // ---- before step 1, and after the last; all ranks ----

  // Takes rank 0's FP32 values of the chunk (Shape::gathered_numel of them, zero where no parameter
  // is) as everyone's initial weights. Called for every chunk, ascending. Other ranks' values may
  // be overwritten.
  virtual void load_chunk(uint32_t chunk, float* values) = 0;
  virtual void await_loaded() = 0;

  // The chunk's FP32 masters after the last posted step, in Shape::gathered_numel values. REQUIRES:
  // that step is finished on every rank (synchronize, on all of them).
  virtual void read_masters(uint32_t chunk, float* values) = 0;

  // ---- parameters up ----

  // Where the whole chunk lies on the device all the time; null: it must be gathered.
  virtual std::byte* resident_block(uint32_t chunk) = 0;

  // Enqueues what brings all shards of the chunk, as they are after `step`, into the block. Waits
  // for no more than the update of that chunk. The block may be written as soon as Stream::kUpload
  // and Stream::kGather may go on; what follows on Stream::kCompute sees the chunk. All ranks
  // (collective exchange).
  virtual void gather(uint32_t chunk, uint32_t step, std::byte* block) = 0;

  // ---- gradients down ----

  // A round is one gradient of each of the chunk's parameters: one backward pass, as a rule.
  // begin_grads before the first of a round; end_grads when all are on their way into the target,
  // on Stream::kCompute (on_device) or Stream::kDownload. All ranks.
  virtual GradTarget begin_grads(uint32_t chunk, uint32_t step) = 0;
  virtual void end_grads(uint32_t chunk, uint32_t step) = 0;
  // Forgets all rounds since the last step.
  virtual void discard_grads() = 0;

  // ---- a step; all ranks ----

  // Returns when all gradients of `step` are where its update reads them, on every rank whose fate
  // this one shares. Every chunk has had a round.
  virtual void complete_grads(uint32_t step) = 0;
  // After the verdict was posted: updates the chunks of home gpu.
  virtual void update_resident(uint32_t step, const optim::AdamStep& constants) = 0;
  // The mean over ranks of what each gave for the last posted step.
  virtual double mean_metric(uint32_t step, double mine) = 0;
  // Returns when `step` is finished here.
  virtual void synchronize(uint32_t step) = 0;
};

}  // namespace elixir
