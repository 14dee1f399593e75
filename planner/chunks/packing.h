#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/profile.h"
#include "shm/shape.h"

namespace elixir::planner {

using shm::kAlignNumel;  // every parameter and every chunk starts at a multiple of it

// What packing needs to know of a parameter.
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

// Which parameter lies where in equal chunks.
struct Packing {
  uint64_t chunk_numel = 0;
  uint32_t n_chunks = 0;            // of trained parameters, numbered from 0
  uint32_t n_frozen_chunks = 0;     // numbered after them
  std::vector<PackedPlace> places;  // by parameter, in the order given; of several chunks the first
  std::vector<uint64_t> numel;      // by chunk: elements that hold a parameter
  // By chunk: how many, from it on, hold one parameter together; 1: it holds whole ones; 0: it goes
  // on with the parameter of the one before.
  std::vector<uint32_t> run;
  std::vector<uint8_t> is_long;  // by chunk: it begins such a run; empty: none does
  // By chunk, and one more: of those before it, how many are in runs, and how many begin one; empty
  // likewise.
  std::vector<uint32_t> run_chunks_before, runs_before;

  uint32_t total_chunks() const { return n_chunks + n_frozen_chunks; }
  // Elements of the longest run; 0: no parameter is longer than a chunk.
  uint64_t long_numel() const;
  // The first chunks, at most `most` of them, of which none goes on in the next; at least `least`.
  uint32_t whole_runs(uint32_t most) const;
  uint32_t whole_runs_from(uint32_t least) const;
  // From `chunk` on: runs, and chunks that are in none.
  uint32_t runs_from(uint32_t chunk) const;
  uint32_t ordinary_chunks_from(uint32_t chunk) const;
  // Elements that hold no parameter, as a share of those that do.
  double waste_ratio() const;
};

// Next-fit in the order given: a parameter that does not fit closes the chunk (Elixir, arXiv
// 2212.05339 v2, section 4.1). Trained ones first, then frozen ones. One that is longer than a
// chunk has as many as it takes to itself. `chunk_numel` is rounded up to kAlignNumel.
Packing pack(std::span<const PackedSize> sizes, uint64_t chunk_numel);

// Whether a chunk swings: every stride-th of those that are not placed on the GPU, of which it is
// number `index`, from 0, in the order of use. Chunks of a parameter that lies in several do not:
// they stay where they follow one another. stride 0: none does.
constexpr bool swings(uint32_t index, uint32_t stride, bool in_run) {
  return stride != 0 && (index + 1) % stride == 0 && !in_run;
}

// What pack() would make: how many chunks, and the shortest length that makes the same.
struct PackedLength {
  uint32_t chunks = 0;
  uint64_t chunk_numel = 0;
};
PackedLength packed_length(std::span<const PackedSize> sizes, uint64_t chunk_numel);

// A length with which so many elements make no more chunks than there may be (shm::kMaxChunks):
// what next-fit puts into a chunk and the next one is longer than a chunk together.
uint64_t possible_chunk_numel(uint64_t model_numel);

// The distinct chunks of each operator of profile.steps; of those that hold one parameter together
// the first.
std::vector<std::vector<uint32_t>> chunks_of_steps(const ModelProfile& profile,
                                                   const Packing& packing);

// The same with each checkpointed region as one operator, and operators that need nothing new left
// out: what the rCache must hold at once.
std::vector<std::vector<uint32_t>> chunks_of_regions(const ModelProfile& profile,
                                                     const Packing& packing);

// Blocks that hold what any one of the operators needs.
struct LeastBlocks {
  uint32_t blocks = 0, long_blocks = 0;
};
LeastBlocks least_blocks(const std::vector<std::vector<uint32_t>>& operators,
                         const Packing& packing);

}  // namespace elixir::planner
