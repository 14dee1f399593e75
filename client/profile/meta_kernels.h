#pragma once

#include "client/tensors/profile_target.h"

namespace elixir {

// Registers kernels for meta tensors for operators that have none in LibTorch (2.11, in C++). These
// are embeddings, where, relu, norms, dropout and fused attention, each with its backward, and
// products with a wider result. Only the first call in a process registers.
void register_meta_kernels();

// While it lives, this thread's operators on meta tensors take as much memory as the target's
// kernels. For example, fused attention keeps its output and the log-sum-exp instead of the scores.
class TargetKernels {
 public:
  explicit TargetKernels(ProfileTarget target);
  ~TargetKernels();
  TargetKernels(const TargetKernels&) = delete;
  TargetKernels& operator=(const TargetKernels&) = delete;
};

}  // namespace elixir
