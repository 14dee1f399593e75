#pragma once

#include <cstdint>

#include "base/status.h"
#include "planner/chunks/packing.h"
#include "planner/machine.h"
#include "planner/plan/plan.h"
#include "planner/profile.h"
#include "planner/step_compute.h"
#include "shm/shape.h"

namespace elixir::planner {

// The input that all candidates share.
struct Setting {
  const ModelProfile& profile;
  const Machine& machine;
  const Packing& packing;
  const StepCompute& compute;
  bool accumulates = false;     // a step has several micro-steps, summed in FP32
  bool copies_at_once = false;  // as in PlanRequest
  bool frozen_on_gpu = false;   // as in PlanRequest
  bool paper = false;           // the paper's runtime: a chunk placed on the GPU takes a block, too
  bool leaves_unused = false;   // as in ModelProfile
  bool grads_in_blocks = false;  // a block has room for a chunk's gradients beside it

  uint64_t block_bytes(Exchange exchange) const;
  uint64_t long_block_bytes(Exchange exchange) const;  // 0: no parameter is longer than a chunk
  // Chunks that come into blocks. With one GPU, chunks placed on it lie there all the time, except
  // in the paper's runtime.
  uint32_t gathered_chunks(uint32_t gpu_chunks) const;
  // Parameters longer than a chunk that come into long blocks.
  uint32_t gathered_runs(uint32_t gpu_chunks) const;
};

// The shape that a trainer of the candidate has.
shm::Shape shape_of(const Setting& setting, const Candidate& candidate);

Placement placement_of(const Setting& setting, const Candidate& candidate, uint32_t chunk);
PlacementCounts placements_of(const Setting& setting, const Candidate& candidate);

// The memory that the candidate takes. Activations and buffers are those of the profile.
PlanBytes bytes_of(const Setting& setting, const Candidate& candidate);

// The part of bytes_of() that spare slots take in a node's host memory.
uint64_t spare_bytes_of(const Setting& setting, const Candidate& candidate);

// The part of bytes_of() that counts against allowed_bytes().
uint64_t chosen_gpu_bytes(const PlanBytes& bytes);

// The number of blocks that fit beside the candidate's other needs, at most one per gathered chunk.
// 0: none fits.
uint32_t most_blocks(const Setting& setting, const Candidate& candidate, uint64_t allowed_bytes);

}  // namespace elixir::planner
