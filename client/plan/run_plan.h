#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/region_plan.h"
#include "base/status.h"
#include "client/plan/chunk_plan.h"
#include "client/plan/options.h"
#include "client/ranks/launch_environment.h"
#include "shm/shape.h"

namespace elixir {

// Host memory that the threads and caches of LibTorch, ZeroMQ and OpenMP take in a training beyond
// what they have at its start. elixird's memory besides states is included. Measured on two cores
// (bench/RESULTS.md).
inline constexpr uint64_t kCpuLibraryBytes = 128ull << 20;
// With CUDA, this adds CUDA's context, LibTorch's libraries for it, and pinned buffers for inputs.
// It is an estimate, not measured.
inline constexpr uint64_t kCudaLibraryBytes = 1024ull << 20;

// The number of blocks of zero3 and rcache-min. An operator reads parameters of two chunks, rarely
// of more.
inline constexpr uint32_t kFewestBlocks = 2;

// The layout of a training: where each parameter is, and how much of the model is on the device.
struct RunPlan {
  ChunkPlan chunks;
  shm::Shape shape;
  uint32_t rcache_blocks = 0;
  // The number of long blocks, and the elements of the longest run of chunks that one gathers. Both
  // are 0 if every parameter fits into a chunk.
  uint32_t long_blocks = 0;
  uint64_t long_numel = 0;
  // The number of blocks that collect gradients before these are reduced or leave the device.
  uint32_t grad_blocks = 0;
  // Page-locked bytes per rank for gradients that wait for their turn, as the planner counts them.
  uint64_t waiting_bytes = 0;
  // Page-locked bytes per rank for what checkpointed regions send to host memory, at most. Empty:
  // not known.
  std::optional<uint64_t> activation_bytes = 0;
  // Host memory that the process of a rank takes from the start on: Options::program_bytes, the
  // device's blocks if that is the CPU, and what the libraries allocate.
  uint64_t trainer_bytes = 0;
  bool sums = false;  // FP32 sums of gradients over micro-steps, wherever states are
  UpdateMode update = UpdateMode::kDeferred;  // early only with spare slots
  // What checkpointed regions keep, for set_region_plan() of client/regions.
  RegionPlan regions = {};

  // How many single chunks, and how many runs of chunks, are gathered into blocks. The other chunks
  // are always on the device.
  uint32_t gathered_chunks() const;
  uint32_t gathered_runs() const;
  // By chunk: how many chunks, from this one on, together hold one parameter. 1: it holds whole
  // parameters; 0: it continues the parameter of the chunk before it.
  std::vector<uint32_t> run_lengths() const;
  uint64_t long_block_bytes() const;
  // Bytes of the buffers for states of swing chunks.
  uint64_t swing_bytes() const;
  // Bytes that Elixir holds on the device.
  uint64_t device_bytes() const;
  // Bytes that elixird reserves for a rank.
  uint64_t host_bytes() const;
};

// The layout that the options ask for: directly, by a strategy or by a plan. `parameters` are in
// the plan's order, if there is a plan. `copies_at_once` is that of the Device. Returns
// kInvalidArgument for options that contradict each other. It does so, too, for a plan of another
// model, number of ranks, type, update or accumulation, and names the difference. Returns
// kResourceExhausted, with need, have and remedy, for a layout beyond device_memory_bytes.
Result<RunPlan> make_run_plan(std::span<const ParameterSize> parameters, const Options& options,
                              const LaunchEnvironment& environment, bool copies_at_once = false);

}  // namespace elixir
