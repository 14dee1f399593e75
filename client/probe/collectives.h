#pragma once

#include <cstdint>

#include "base/status.h"

namespace elixir::probe {

inline constexpr uint64_t kGatheredBytes = uint64_t{64} << 20;  // bytes of a chunk

// The program that runs as a rank, in the folder of the running program, and the flag that tells it
// so.
inline constexpr char kRankProgram[] = "elixir-probe";
inline constexpr char kRankFlag[] = "--as-collective-rank";

// The rate at which `ranks` processes on this machine all-gather a chunk: chunk bytes in GB (1e9)
// per second. They use NCCL with one GPU each, or Gloo on CPUs. Returns kUnavailable if there is no
// kRankProgram, or if a rank ended early; it has then said why on standard error.
Result<double> measure_collectives(uint32_t ranks, bool on_gpus);

// Runs one of those processes, as the rank that its launch environment names. Rank 0 prints the
// rate. Throws Error.
void run_collective_rank(bool on_gpu);

}  // namespace elixir::probe
