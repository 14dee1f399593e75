#pragma once

// The ways in which ranks share a chunk. Each rank keeps a shard of it (shm::Shape::shard_begin),
// and all contribute gradients. There are two: host_exchange.h and collective_exchange.h. Chunks
// are numbered as in shm::Shape: first those placed on the CPU, whose states elixird keeps, then
// those placed on the GPU, whose states are on the device (client/device/device_states.h).
//
// Used by the thread that runs the model (or autograd's thread, while the first waits). If a
// function says "all ranks", every rank must make the same calls in the same order. Throws
// elixir::Error; kPeerLost names a rank that died.

#include <cstddef>
#include <cstdint>
#include <span>

#include "client/device/device.h"
#include "client/device/device_states.h"
#include "client/ranks/collective_kind.h"
#include "shm/layout.h"
#include "shm/step_rules.h"

namespace elixir {

// The memory for the gradients of a chunk: chunk_numel elements of the compute type.
struct GradTarget {
  std::byte* memory = nullptr;
  // false: host memory. REQUIRES: Device::copies_at_once(), which the exchange's constructor
  // checks.
  bool on_device = false;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Bytes of a block that can hold a gathered chunk: chunk_bytes, or more.
  virtual size_t block_bytes() const = 0;

  // ---- before step 1, and after the last; all ranks ----

  // hand_out() and load(), called once each for every chunk, make rank 0's FP32 values everyone's
  // initial weights. A chunk has Shape::gathered_numel of them, zero where there is no parameter. A
  // frozen chunk has words of 32 bits instead, with a 16-bit type in the upper half, and no bit
  // changes.
  //
  // hand_out() takes the frozen chunks, then the others, ascending. It writes the values that this
  // rank keeps to `values`; ranks other than 0 may pass anything in them.
  virtual void hand_out(uint32_t chunk, float* values) = 0;
  // Call it next, with the same values; it returns when elixird has taken them. Any thread may call
  // it, for several chunks at a time. Frozen chunks that load at the same time must be consecutive,
  // and at most Shape::n_grad_slots().
  virtual void load(uint32_t chunk, const float* values) = 0;
  // No rank returns before all have called this, in the same call of the program, and have loaded
  // their values. The error names a rank that does not come, if it is known. Later, a chunk may be
  // handed out and loaded again between two of these calls, if every posted step is finished.
  virtual void await_loaded(CollectiveKind call) = 0;

  // Copies rank 0's bytes to all ranks; every rank passes the same size.
  virtual void broadcast(std::span<std::byte> bytes) = 0;

  // Reads the chunk's FP32 masters after the last posted step, Shape::gathered_numel values.
  // REQUIRES: that step is finished on every rank (all have called synchronize). Nothing checks it,
  // because no rank knows this of the others.
  virtual void read_masters(uint32_t chunk, float* values) = 0;
  // Reads a moment of the update rule in the same way.
  virtual void read_moment(uint32_t chunk, uint32_t moment, float* values) = 0;

  // Reads the image of this rank's shard (shm::Shape::image_bytes) of a chunk placed on the GPU,
  // with all enqueued updates. Any rank.
  virtual void read_image(uint32_t chunk, std::byte* image) = 0;
  virtual void load_image(uint32_t chunk, const std::byte* image) = 0;

  // ---- parameters up ----

  // The place of a whole chunk that is always on the device; null: it must be gathered.
  virtual std::byte* own_block(uint32_t chunk) = 0;

  // Whether the chunk may be gathered ahead of the operators that need it: its parameters after
  // `step` are there, and gather() does not wait. Always false if all ranks must gather in one
  // order, because they may differ in what is there.
  virtual bool ready(uint32_t chunk, uint32_t step) = 0;

  // Enqueues copies of all shards of the chunk, as they are after `step`, into the block. They run
  // behind `unused`, and `filled` is recorded behind them. The caller waits at most for the update
  // of that chunk. All ranks (collective exchange).
  virtual void gather(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
                      DeviceEvent filled) = 0;

  // ---- gradients down ----

  // A micro-step has at most one gradient of each of the chunk's parameters; usually it is one
  // backward pass. The micro-steps of a step count from 1, and their gradients are added in FP32.
  // Call begin_grads before a micro-step's first gradient; it returns whether the target holds
  // zeros, so that you need not zero missing gradients. Call grad_target before each gradient; its
  // result is valid until the next call. Call end_grads when all gradients are there, or on their
  // way on Stream::kCompute (on_device). All ranks.
  virtual bool begin_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) = 0;
  virtual GradTarget grad_target(uint32_t chunk) = 0;
  virtual void end_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) = 0;
  // Call it when every chunk has had this rank's last micro-step of a step, until it returns false.
  // True: another rank has one more micro-step, and this rank must take part in it with zeros. All
  // ranks.
  virtual bool others_go_on() = 0;
  // Forgets all micro-steps since the last step. REQUIRES: there are some. All ranks.
  virtual void discard_grads() = 0;

  // ---- a step; all ranks ----

  // Posts the step once all its gradients are where its update reads them. Returns earlier if that
  // needs no other rank. REQUIRES: every chunk has had a micro-step. `late_metric`: null, or where
  // record.metric will be once the current work on Stream::kDownload is done.
  virtual void post(const shm::StepRecord& record, const double* late_metric) = 0;
  // Returns when elixird has received all posts.
  virtual void drain() = 0;
  // After a post: updates the chunks placed on the GPU.
  virtual void update_on_device(const optim::ParameterSteps& updates) = 0;
  // The mean over ranks of the metrics that they gave for the last posted step.
  virtual double mean_metric(uint32_t step, double mine) = 0;
  // Returns when `step` is finished on this rank.
  virtual void synchronize(uint32_t step) = 0;

  // Bytes that this rank has received from other devices since construction: (ranks - 1) shards for
  // each gather and each reduction.
  virtual uint64_t d2d_bytes() const = 0;
};

}  // namespace elixir
