#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "client/plan/chunk_plan.h"
#include "client/plan/options.h"
#include "client/ranks/launch_environment.h"
#include "shm/shape.h"

namespace elixir {

// Blocks of zero3 and rcache-min: an operator reads parameters of two chunks, seldom of more.
inline constexpr uint32_t kFewestBlocks = 2;

// How a model is trained: which parameter lies where, how much of it on the device.
struct RunPlan {
  ChunkPlan chunks;
  shm::Shape shape;
  uint32_t rcache_blocks = 0;
  // Into which parameters longer than a chunk are gathered, each a run of chunks, and how long the
  // longest run is. None where every parameter fits into a chunk.
  uint32_t long_blocks = 0;
  uint64_t long_numel = 0;
  // In which gradients come together before they are reduced or leave the device.
  uint32_t grad_blocks = 0;
  // Of a rank, page-locked: gradients that wait for their turn, as the planner's plan counts them.
  uint64_t waiting_bytes = 0;
  bool sums = false;  // of gradients over micro-steps, FP32, wherever states are
  UpdateMode update = UpdateMode::kDeferred;  // early only with spare slots

  // What is gathered into blocks: chunks, one by one, and runs of chunks, each as one. The others
  // lie on the device all the time.
  uint32_t gathered_chunks() const;
  uint32_t gathered_runs() const;
  // By chunk: how many, from it on, hold one parameter together; 1: it holds whole ones; 0: it goes
  // on with that of the one before.
  std::vector<uint32_t> run_lengths() const;
  uint64_t long_block_bytes() const;
  // Of buffers that states of swing chunks go through.
  uint64_t swing_bytes() const;
  // What Elixir holds on the device.
  uint64_t device_bytes() const;
  // What elixird reserves for a rank.
  uint64_t host_bytes() const;
};

// The layout that the options ask for, by themselves, by a strategy or by a plan. `parameters`: in
// the plan's order, where there is one. `copies_at_once`: Device's. kInvalidArgument for what
// contradicts itself, and for a plan that is of another model, number of ranks, type, update or
// accumulation, by name; kResourceExhausted for a layout beyond device_memory_bytes, with need,
// have and remedy.
Result<RunPlan> make_run_plan(std::span<const ParameterSize> parameters, const Options& options,
                              const LaunchEnvironment& environment, bool copies_at_once = false);

}  // namespace elixir
