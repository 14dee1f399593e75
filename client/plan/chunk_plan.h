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
  bool frozen = false;     // not trained: it comes after all that are
  bool own_chunk = false;  // used in several places of forward: it shares its chunk with none
};

// The place of every parameter in its chunk.
struct ChunkPlan {
  uint64_t chunk_numel = 0;
  uint32_t n_chunks = 0;                    // of trained parameters
  uint32_t n_gpu_chunks = 0;                // of them, placed on the GPU: the last ones
  uint32_t n_swing_chunks = 0;              // of the others, that swing: the last of these
  uint32_t n_frozen_chunks = 0;             // of the others; numbered from n_chunks on
  std::vector<shm::ParameterPlace> places;  // in the order of the parameters given

  // The chunks of trained parameters in the order in which these were given.
  std::vector<uint32_t> order() const;

  // Elements that hold no parameter, as a share of those that do.
  double waste_ratio() const;
};

// Packs parameters into chunks of `chunk_numel` elements (rounded up to shm::kAlignNumel) in the
// order given, as planner/chunks/packing.h does, trained ones apart from frozen ones.
//   chunk_numel 0: the smallest length that wastes at most 3 %, or else wastes least, of up to 2000
//   lengths from the largest parameter to a quarter of the model, or to twice that parameter; where
//   a few are far longer than all others, as token embeddings are, from the largest of the others,
//   but no shorter than a Mi elements (planner::ordinary_length).
// kInvalidArgument if there would be too many chunks.
Result<ChunkPlan> plan_chunks(std::span<const ParameterSize> parameters, uint64_t chunk_numel);

// Places `n` chunks on the GPU and numbers these last, as shm::Shape does. They are the first in
// the order of the parameters, so that the device updates what the next forward pass needs first.
// It places fewer if they would end in the middle of a parameter that is longer than a chunk.
void place_on_gpu(ChunkPlan& plan, uint32_t n);

// Makes those of the other chunks swing that planner::swings() names, and numbers them behind the
// rest, as shm::Shape does. stride 0: none. Call it after place_on_gpu().
void place_swing(ChunkPlan& plan, uint32_t stride);

}  // namespace elixir
