#pragma once

#include <cstdint>
#include <vector>

#include "client/device/device.h"
#include "optim_cpu/parameter_steps.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir {

// This rank's states of the chunks placed on the GPU: its shard's parameters, the bits that
// complete them to FP32 masters, and moments. The device updates them. Chunks are numbered as in
// shm::Shape, from shape.n_chunks on. Throws elixir::Error.
class DeviceStates {
 public:
  // With `sums`, the memory for FP32 sums over micro-steps is allocated now, otherwise when a step
  // first has a second micro-step.
  DeviceStates(Device& device, const shm::Shape& shape, uint32_t rank,
               const std::vector<shm::ParameterPlace>& places, bool sums);

  // shard_numel elements of the compute type.
  std::byte* param(uint32_t chunk) const;
  // Memory for shard_numel gradients of a micro-step. Write them between the two calls below, on
  // the stream that you pass to both: kCompute or kReduce. Micro-step 1 begins a new step.
  std::byte* grads(uint32_t chunk) const;
  void begin_micro_step(uint32_t chunk, uint32_t micro_step, Stream stream);
  void end_micro_step(uint32_t chunk, uint32_t micro_step, Stream stream);

  // Enqueues the squares of the gradients that the update will use, into one NormSum of device
  // memory.
  void squared_norm(Stream stream, uint32_t chunk, std::byte* result);

  // `values` is host memory for shard_end - shard_begin FP32 values: the shard's masters, or one of
  // its moments. All three wait for the device.
  void load(uint32_t chunk, const float* values);
  void read_masters(uint32_t chunk, float* values);
  void read_moment(uint32_t chunk, uint32_t moment, float* values);
  // The image of the shard, as shm::Shape lays it out (image_bytes): parameters, the bits that
  // complete their masters, moments. Elements behind the last rank's end are left as they are. Both
  // wait for the device.
  void read_image(uint32_t chunk, std::byte* image);
  void load_image(uint32_t chunk, const std::byte* image);

  // Enqueues Adam on Stream::kCompute, for the shard's parameters that the step updates. It uses
  // the gradients of the micro-step, or the sum of several.
  void update(uint32_t chunk, const optim::ParameterSteps& step);

 private:
  // A parameter's elements in a shard, and the gap up to the next parameter.
  struct Piece {
    uint64_t begin, numel;
    uint32_t parameter;
  };
  void update(uint32_t chunk, const Piece& piece, const optim::AdamStep& constants);
  // An array of the shard, on the device and in its image.
  struct Array {
    std::byte* memory;
    uint64_t image_offset, bytes;
  };
  std::vector<Array> arrays(uint32_t chunk) const;
  std::vector<Piece> pieces_of(uint32_t chunk, std::vector<uint32_t>& here,
                               const std::vector<shm::ParameterPlace>& places) const;
  void allocate_sums();
  void add_to_sum(uint32_t chunk, bool begins, Stream stream);
  float* grad_sum(uint32_t chunk) const;  // null: the chunk has none in this step
  uint64_t first(uint32_t chunk) const;   // index of its first element in each array
  std::byte* master(uint32_t chunk) const;
  void wait_for(Stream stream);

  Device& device_;
  const shm::Shape shape_;
  const uint64_t shard_begin_;
  const uint64_t used_numel_;  // per shard; the rest is behind the last rank's end
  std::byte* params_ = nullptr;
  std::byte* masters_ = nullptr;  // null with FP32, where the parameter is the master
  float* moments_[kMaxMoments] = {};
  std::byte* grads_ = nullptr;
  float* sums_ = nullptr;                   // null: no step has had several micro-steps
  std::vector<bool> has_sum_;               // by chunk placed on the GPU
  std::vector<std::vector<Piece>> pieces_;  // by chunk placed on the GPU
  DeviceEvent done_;
};

}  // namespace elixir
