#pragma once

#include <vector>

#include "planner/machine.h"
#include "planner/profile.h"

namespace elixir::planner {

// Seconds of one GPU, by why they pass.
struct ComputeParts {
  double products_s = 0;
  double attention_s = 0;
  double memory_s = 0;  // other operators read and write
  double launch_s = 0;

  double total() const { return products_s + attention_s + memory_s + launch_s; }
  void add(const ComputeParts& other);
};

// By operator of profile.steps. A product takes max(operations / matrix rate, bytes / memory rate).
// Fused attention takes operations / its own rate, other operators bytes / memory rate, and each
// kernel a launch. Backward's attention has backward's rate, and that of second runs has
// forward's. A profile without `regions` does not tell them apart: with activation checkpointing,
// the rate in backward is that of 2 and 5 products.
//
// Rates that the machine does not say: device_gb_s() for memory, 5 us for a launch
// (kAssumedLaunchUs), and for attention kAssumedAttentionShare of the matrix rate. FP32 scales
// attention like products.
// REQUIRES: profile.step_work is not empty.
std::vector<ComputeParts> compute_parts(const ModelProfile& profile, const Machine& machine);

inline constexpr double kAssumedLaunchUs = 5;
// FlashAttention over causal sequences on an H200, head width 64 to 128, 1,024 to 2,048 tokens:
// 0.36 to 0.66 of the matrix rate (bench/measured).
inline constexpr double kAssumedAttentionShare = 0.5;

}  // namespace elixir::planner
