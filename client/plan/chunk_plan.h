#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/parameter_table.h"

namespace elixir {

struct ParameterSize {
  std::string name;
  uint64_t numel = 0;
  bool frozen = false;     // not trained: it comes after all trained ones
  bool own_chunk = false;  // forward uses it in several places: no other is in its chunk
};

// The place of every parameter in its chunk.
struct ChunkPlan {
  uint64_t chunk_numel = 0;
  uint32_t n_chunks = 0;         // chunks of trained parameters
  uint32_t n_gpu_chunks = 0;     // the last of n_chunks: placed on the GPU
  uint32_t n_swing_chunks = 0;   // swing chunks: the last before those on the GPU
  uint32_t n_frozen_chunks = 0;  // chunks of frozen parameters; numbered from n_chunks on
  std::vector<shm::ParameterPlace> places;  // in the order of the given parameters

  // The chunks of trained parameters, in the order of the given parameters.
  std::vector<uint32_t> order() const;

  // Elements that hold no parameter, as a share of those that do.
  double waste_ratio() const;
};

// Packs parameters into chunks of `chunk_numel` elements (rounded up to shm::kAlignNumel) in the
// given order, as planner/chunks/packing.h does. Trained and frozen ones are in separate chunks.
//   chunk_numel 0 chooses a length: the smallest that wastes at most 3 %, or else the one that
//   wastes least. It tries up to 2000 lengths. They begin at the largest parameter and end at a
//   quarter of the model, or at twice that parameter. If a few parameters are far longer than all
//   others, as token embeddings are, the lengths begin at the largest of the others, but not below
//   a Mi elements (planner::ordinary_length).
// Returns kInvalidArgument if there would be too many chunks.
Result<ChunkPlan> plan_chunks(std::span<const ParameterSize> parameters, uint64_t chunk_numel);

// Places `n` chunks on the GPU and numbers these last, as shm::Shape does. They are the first in
// the order of the parameters, so the device updates the chunks that the next forward pass needs
// first. It places fewer if they would end in the middle of a parameter that is longer than a
// chunk.
void place_on_gpu(ChunkPlan& plan, uint32_t n);

// Makes the other chunks that planner::swings() selects swing chunks, and numbers them behind the
// rest, as shm::Shape does. With stride 0 none swings. Call it after place_on_gpu().
void place_swing(ChunkPlan& plan, uint32_t stride);

}  // namespace elixir
