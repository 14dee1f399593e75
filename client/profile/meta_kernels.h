#pragma once

#include "client/profile/target.h"

namespace elixir {

// Registers, once in a process, kernels for meta tensors where LibTorch (2.11, in C++) has none:
// embeddings, where, relu, norms, dropout, fused attention, each with its backward.
void register_meta_kernels();

// While it lives, this thread's operators on meta tensors take the memory that the target's kernels
// take: fused attention keeps its output and the log-sum-exp instead of the scores, and so on.
class TargetKernels {
 public:
  explicit TargetKernels(ProfileTarget target);
  ~TargetKernels();
  TargetKernels(const TargetKernels&) = delete;
  TargetKernels& operator=(const TargetKernels&) = delete;
};

}  // namespace elixir
