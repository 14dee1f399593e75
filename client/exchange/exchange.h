#pragma once

// How ranks share a chunk: each keeps a shard of it (shm::Shape::shard_begin), all contribute
// gradients. Two ways: host_exchange.h and collective_exchange.h. Chunks are numbered as in
// shm::Shape: first those placed on the CPU, whose states elixird keeps, then those placed on the
// GPU, whose states lie on the device (client/device/device_states.h).
//
// Used by the thread that runs the model (autograd's, while that one waits). Where a function says
// "all ranks", every rank must make the same calls in the same order. Throws elixir::Error;
// kPeerLost names a rank that died.

#include <cstddef>
#include <cstdint>
#include <span>

#include "client/device/device.h"
#include "client/device/device_states.h"
#include "client/ranks/collective_kind.h"
#include "shm/layout.h"
#include "shm/step_rules.h"

namespace elixir {

// Where the gradients of a chunk are to be put: chunk_numel elements of the compute type.
struct GradTarget {
  std::byte* memory = nullptr;
  // Else host memory. REQUIRES: Device::copies_at_once(), which the exchange's constructor checks.
  bool on_device = false;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Bytes of a block that can hold a gathered chunk: chunk_bytes, or more.
  virtual size_t block_bytes() const = 0;

  // ---- before step 1, and after the last; all ranks ----

  // Rank 0's FP32 values of the chunk (Shape::gathered_numel of them, zero where no parameter is)
  // become everyone's initial weights, in two calls for every chunk. Of a frozen chunk they are
  // words of 32 bits, a 16-bit type's in the upper half, whose bits nothing changes. hand_out: the
  // frozen chunks, then the others, ascending; brings this rank what it keeps, in `values`,
  // whatever they held on another rank than 0.
  virtual void hand_out(uint32_t chunk, float* values) = 0;
  // Then, with the same values: returns when elixird has taken them. Any thread, several chunks at
  // a time; with frozen ones, at most Shape::n_grad_slots() that follow one another.
  virtual void load(uint32_t chunk, const float* values) = 0;
  // Returns on no rank before all have come here, in the same call of the program, and loaded what
  // they load; a rank that does not come is named, as far as is known. A chunk may be handed
  // out and loaded again later, between two calls of it, while every posted step is finished.
  virtual void await_loaded(CollectiveKind call) = 0;

  // Rank 0's bytes become everyone's; as many on every rank.
  virtual void broadcast(std::span<std::byte> bytes) = 0;

  // The chunk's FP32 masters after the last posted step, in Shape::gathered_numel values. REQUIRES:
  // that step is finished on every rank (synchronize, on all of them), which no rank can know of
  // the others: nothing checks it.
  virtual void read_masters(uint32_t chunk, float* values) = 0;
  // The same of a moment of the update rule.
  virtual void read_moment(uint32_t chunk, uint32_t moment, float* values) = 0;

  // Of a chunk placed on the GPU: the image of this rank's shard (shm::Shape::image_bytes), with
  // all updates that were enqueued. Any rank.
  virtual void read_image(uint32_t chunk, std::byte* image) = 0;
  virtual void load_image(uint32_t chunk, const std::byte* image) = 0;

  // ---- parameters up ----

  // Where the whole chunk lies on the device all the time; null: it must be gathered.
  virtual std::byte* own_block(uint32_t chunk) = 0;

  // Whether the chunk may be gathered ahead of the operators that need it: its parameters after
  // `step` are there, and gather() waits for nobody. False where all ranks must gather in one
  // order, since what is there differs between them.
  virtual bool ready(uint32_t chunk, uint32_t step) = 0;

  // Enqueues what brings all shards of the chunk, as they are after `step`, into the block, behind
  // `unused`, and records `filled` behind it. The caller waits for no more than the update of that
  // chunk. All ranks (collective exchange).
  virtual void gather(uint32_t chunk, uint32_t step, std::byte* block, DeviceEvent unused,
                      DeviceEvent filled) = 0;

  // ---- gradients down ----

  // A micro-step is at most one gradient of each of the chunk's parameters: one backward pass, as a
  // rule. Those of a step count from 1 and are added up in FP32. begin_grads before a micro-step's
  // first gradient, which says whether the target holds zeros, so that a gradient that does not
  // come needs none; grad_target before each, which is good until the next call; end_grads when all
  // are there, or on their way on Stream::kCompute (on_device). All ranks.
  virtual bool begin_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) = 0;
  virtual GradTarget grad_target(uint32_t chunk) = 0;
  virtual void end_grads(uint32_t chunk, uint32_t step, uint32_t micro_step) = 0;
  // Once every chunk has had this rank's last micro-step of a step, until it says no: another rank
  // has one more, of which this rank must have a part, with zeros. All ranks.
  virtual bool others_go_on() = 0;
  // Forgets all micro-steps since the last step, of which there are some. All ranks.
  virtual void discard_grads() = 0;

  // ---- a step; all ranks ----

  // Every chunk has had a micro-step: posts the step once all its gradients are where its update
  // reads them. Returns before, where that needs no other rank. `late_metric`: null, or where
  // record.metric will be once what is on Stream::kDownload now is done.
  virtual void post(const shm::StepRecord& record, const double* late_metric) = 0;
  // Returns when elixird has been told of all posts.
  virtual void drain() = 0;
  // After a post: updates the chunks placed on the GPU.
  virtual void update_on_device(const optim::ParameterSteps& updates) = 0;
  // The mean over ranks of what each gave for the last posted step.
  virtual double mean_metric(uint32_t step, double mine) = 0;
  // Returns when `step` is finished here.
  virtual void synchronize(uint32_t step) = 0;

  // What this rank has received from other devices, since construction: (ranks - 1) shards for each
  // gather and each reduction.
  virtual uint64_t d2d_bytes() const = 0;
};

}  // namespace elixir
