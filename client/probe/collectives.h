#pragma once

#include <cstdint>

#include "base/status.h"

namespace elixir::probe {

inline constexpr uint64_t kGatheredBytes = uint64_t{64} << 20;  // a chunk's

// The program that is a rank, beside the running one, and the flag that makes it one.
inline constexpr char kRankProgram[] = "elixir-probe";
inline constexpr char kRankFlag[] = "--as-collective-rank";

// Chunk bytes a second, in GB of 1e9, that `ranks` processes on this machine all-gather: over NCCL,
// a GPU each, or over Gloo on CPUs. kUnavailable: there is no kRankProgram,
// or a rank ended early, having said why on standard error.
Result<double> measure_collectives(uint32_t ranks, bool on_gpus);

// One of those processes, placed by its launch environment; rank 0 prints the rate. Throws Error.
void run_collective_rank(bool on_gpu);

}  // namespace elixir::probe
