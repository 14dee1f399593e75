#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/profile.h"
#include "shm/shape.h"

namespace elixir::planner {

using shm::kAlignNumel;  // every parameter and every chunk starts at a multiple of it

// A parameter as packing sees it.
struct PackedSize {
  uint64_t numel = 0;
  bool own_chunk = false;  // used in several places: it has a chunk of its own
  bool frozen = false;     // not trained: in chunks after all others
};
std::vector<PackedSize> packed_sizes(const ModelProfile& profile);

struct PackedPlace {
  uint32_t chunk = 0;
  uint64_t offset = 0;  // elements from the chunk's start

  bool operator==(const PackedPlace&) const = default;
};

// The place of each parameter in chunks of equal length.
struct Packing {
  uint64_t chunk_numel = 0;
  uint32_t n_chunks = 0;            // with trained parameters, numbered from 0
  uint32_t n_frozen_chunks = 0;     // numbered after them
  std::vector<PackedPlace> places;  // by parameter, in the given order; a run's first chunk
  std::vector<uint64_t> numel;      // by chunk: elements that hold a parameter
  // By chunk: the number of chunks, from this one on, that hold one long parameter together (a
  // run). 1: the chunk holds whole parameters. 0: it continues the run of the one before.
  std::vector<uint32_t> run;
  std::vector<uint8_t> is_long;  // by chunk: a run begins; empty: there are no runs
  // By chunk, with one entry more at the end: how many chunks before it are in runs, and how many
  // runs begin before it. Empty if there are no runs.
  std::vector<uint32_t> run_chunks_before, runs_before;

  uint32_t total_chunks() const { return n_chunks + n_frozen_chunks; }
  // Elements of the longest run; 0: no parameter is longer than a chunk.
  uint64_t long_numel() const;
  // How many first chunks may be taken without cutting a run: the greatest number up to `most`, and
  // the smallest from `least` on.
  uint32_t whole_runs(uint32_t most) const;
  uint32_t whole_runs_from(uint32_t least) const;
  // From `chunk` on: the number of runs, and the number of chunks that are in none.
  uint32_t runs_from(uint32_t chunk) const;
  uint32_t ordinary_chunks_from(uint32_t chunk) const;
  // Elements that hold no parameter, as a share of those that do.
  double waste_ratio() const;
};

// Next-fit in the given order: a parameter that does not fit closes the chunk (Elixir, arXiv
// 2212.05339 v2, section 4.1). Trained parameters come first, then frozen ones. A parameter that is
// longer than a chunk gets a run of chunks to itself. `chunk_numel` is rounded up to kAlignNumel.
Packing pack(std::span<const PackedSize> sizes, uint64_t chunk_numel);

// Whether a chunk swings: every stride-th of the chunks that are not placed on the GPU does.
// `index` is its number among those, from 0, in the order of use. Chunks of a run do not swing:
// they stay where they follow one another. stride 0: none does.
constexpr bool swings(uint32_t index, uint32_t stride, bool in_run) {
  return stride != 0 && (index + 1) % stride == 0 && !in_run;
}

// The number of chunks that pack() would make, and the shortest length that makes as many.
struct PackedLength {
  uint32_t chunks = 0;
  uint64_t chunk_numel = 0;
};
PackedLength packed_length(std::span<const PackedSize> sizes, uint64_t chunk_numel);

// A length with which a model of `model_numel` elements makes at most shm::kMaxChunks chunks.
// Next-fit puts more than one chunk's length into each chunk and the next one together.
uint64_t possible_chunk_numel(uint64_t model_numel);

// The distinct chunks of each operator of profile.steps. A run is named by its first chunk.
std::vector<std::vector<uint32_t>> chunks_of_steps(const ModelProfile& profile,
                                                   const Packing& packing);

// Like chunks_of_steps(), but each checkpointed region is one operator. Operators that need no
// chunk, or the same chunks as the one before, are left out. So each entry is what the rCache must
// hold at once.
std::vector<std::vector<uint32_t>> chunks_of_regions(const ModelProfile& profile,
                                                     const Packing& packing);

// The fewest blocks with which every one of the operators can run.
struct LeastBlocks {
  uint32_t blocks = 0, long_blocks = 0;
};
LeastBlocks least_blocks(const std::vector<std::vector<uint32_t>>& operators,
                         const Packing& packing);

}  // namespace elixir::planner
