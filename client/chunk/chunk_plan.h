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
};

// Which parameter lies where in which chunk.
struct ChunkPlan {
  uint64_t chunk_numel = 0;
  uint32_t n_chunks = 0;
  std::vector<shm::ParameterPlace> places;  // in the order of the parameters given

  // Elements that hold no parameter, as a share of those that do.
  double waste_ratio() const;
};

// Packs parameters into chunks of `chunk_numel` elements (rounded up to shm::kAlignNumel) in the
// order given, next-fit: a parameter that does not fit closes the chunk (Elixir, arXiv 2212.05339,
// section 4). Every parameter starts at a multiple of shm::kAlignNumel.
//   chunk_numel 0: the smallest length that wastes at most 3 %, or else wastes least, of up to 2000
//   lengths from the largest parameter to a quarter of the model, or to twice that parameter.
// kInvalidArgument when a parameter is longer than a chunk: names it and the length it needs.
Result<ChunkPlan> plan_chunks(std::span<const ParameterSize> parameters, uint64_t chunk_numel);

}  // namespace elixir
