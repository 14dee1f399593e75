#pragma once

#include <cstdint>
#include <vector>

#include "client/device/device.h"
#include "planner/machine.h"

namespace elixir::probe {

struct OperatorRateOptions {
  int64_t numel = int64_t{16} << 20;  // elements of the tensors that memory is measured with
  int rounds = 5;                     // the best counts, because other work only adds time
  // Attention has sequences of so many tokens, and heads share a width.
  int64_t sequences = 1, sequence_tokens = 256, heads_width = 256;
  std::vector<uint32_t> heads = {64, 128};  // elements of a head
};

// The rates of planner/compute_parts.h besides the matrix rate.
struct OperatorRates {
  double memory_gb_s = 0;  // read and written, 1e9 bytes a second
  double launch_us = 0;    // of a small operator among many
  std::vector<planner::AttentionRate> attention;
};

// Runs torch's operators on `device`. The calling thread enqueues them. They are elementwise ones
// on tensors beyond the caches, small ones in a row, and causal attention forward and backward. The
// type is BF16, on a CPU FP32. Needs 14 bytes per element. Throws what torch throws.
OperatorRates measure_operators(Device& device, const OperatorRateOptions& options);

}  // namespace elixir::probe
