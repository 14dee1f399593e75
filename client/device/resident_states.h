#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/device/device.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir {

// A step's constants by group of parameters.
using GroupSteps = std::vector<optim::AdamStep>;

// What this rank keeps on the device of the chunks of home gpu: its shard's parameters, what
// completes them to FP32 masters, exp_avg, exp_avg_sq; and the update of these there. Chunks are
// numbered as in shm::Shape, from shape.n_chunks on. Throws elixir::Error.
class ResidentStates {
 public:
  // grad_numel: elements a chunk of the buffer in which gradients wait for the update, and, with
  // shape.accumulates, of the FP32 sums over rounds; 0: none.
  ResidentStates(Device& device, const shm::Shape& shape, uint32_t rank, uint64_t grad_numel,
                 const std::vector<shm::ParameterPlace>& places);

  // shard_numel elements of the compute type.
  std::byte* param(uint32_t chunk) const;
  // grad_numel elements of the compute type.
  std::byte* grads(uint32_t chunk) const;

  // Adds what grads(chunk) holds to the sum over rounds, or begins it; on Stream::kCompute or
  // Stream::kReduce.
  void add_round(uint32_t chunk, bool first, Stream stream);
  // Enqueues the squares of what the update will take (grads, or the sum over rounds) into one
  // NormSum of device memory.
  void squared_norm(Stream stream, uint32_t chunk, std::byte* result);

  // FP32 masters of the shard, host memory: shard_end - shard_begin of them. Waits for the device.
  void load(uint32_t chunk, const float* values);
  void read_masters(uint32_t chunk, float* values);

  // Enqueues Adam on the shard, on Stream::kCompute. `grads`: the shard's gradients, device memory,
  // in the order of summation; empty: what grads(chunk), or the sum over rounds, holds.
  void update(uint32_t chunk, std::span<const std::byte* const> grads, const GroupSteps& constants);

 private:
  // Elements of a shard that have one group of hyperparameters.
  struct Piece {
    uint64_t begin, numel;
    uint32_t group;
  };
  std::vector<Piece> pieces_of(uint32_t chunk,
                               const std::vector<shm::ParameterPlace>& places) const;
  float* round_sum(uint32_t chunk) const;
  uint64_t first(uint32_t chunk) const { return (chunk - shape_.n_chunks) * shape_.shard_numel(); }
  std::byte* master(uint32_t chunk) const;
  void wait_for(Stream stream);

  Device& device_;
  const shm::Shape shape_;
  const uint64_t shard_begin_;
  const uint64_t used_numel_;  // of a shard: those behind the last rank's end belong to nobody
  const uint64_t grad_numel_;
  std::byte* params_ = nullptr;
  std::byte* masters_ = nullptr;  // null with FP32, where the parameter is the master
  float* exp_avg_ = nullptr;
  float* exp_avg_sq_ = nullptr;
  std::byte* grads_ = nullptr;
  float* round_sums_ = nullptr;             // null: there is one round
  std::vector<std::vector<Piece>> pieces_;  // by chunk of home gpu
  DeviceEvent done_;
};

}  // namespace elixir
