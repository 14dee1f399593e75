#pragma once

#include <cstdint>

#include "base/status.h"
#include "planner/chunks/packing.h"
#include "planner/machine.h"
#include "planner/plan/plan.h"
#include "planner/profile.h"
#include "shm/shape.h"

namespace elixir::planner {

// What all candidates share.
struct Setting {
  const ModelProfile& profile;
  const Machine& machine;
  const Packing& packing;
  bool accumulates = false;     // a step has several micro-steps, summed in FP32
  bool copies_at_once = false;  // PlanRequest's
  bool frozen_on_gpu = false;   // PlanRequest's
  bool paper = false;           // the paper's runtime: a chunk placed on the GPU takes a block, too
  bool leaves_unused = false;   // ModelProfile's
  bool grads_in_blocks = false;  // a block has room for a chunk's gradients beside it

  uint64_t block_bytes(Exchange exchange) const;
  uint64_t long_block_bytes(Exchange exchange) const;  // 0: no parameter is longer than a chunk
  // Chunks that come into blocks; with one GPU those placed on the GPU lie there all the time,
  // except in the paper's runtime.
  uint32_t gathered_chunks(uint32_t gpu_chunks) const;
  // Parameters longer than a chunk that come into long blocks.
  uint32_t gathered_runs(uint32_t gpu_chunks) const;
};

// As a trainer of the candidate makes it.
shm::Shape shape_of(const Setting& setting, const Candidate& candidate);

Placement placement_of(const Setting& setting, const Candidate& candidate, uint32_t chunk);
PlacementCounts placements_of(const Setting& setting, const Candidate& candidate);

// What it takes; activations and buffers as the profile has them.
PlanBytes bytes_of(const Setting& setting, const Candidate& candidate);

// Of bytes_of(), what spare slots take in a node's host memory.
uint64_t spare_bytes_of(const Setting& setting, const Candidate& candidate);

// Of bytes_of(), what counts against allowed_bytes().
uint64_t chosen_gpu_bytes(const PlanBytes& bytes);

// Blocks that fit beside `candidate`'s other needs, at most all that are gathered; 0: none does.
uint32_t most_blocks(const Setting& setting, const Candidate& candidate, uint64_t allowed_bytes);

}  // namespace elixir::planner
