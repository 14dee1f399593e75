#pragma once

// Gradients before the update: their sum over ranks, the FP32 sum over the micro-steps of a step,
// and their squares. One pass over memory does all three. As in adam.h: arithmetic only, the same
// bits with every instruction set.

#include "base/norm_sum.h"
#include "optim_cpu/adam.h"

namespace elixir::optim {

// `numel` consecutive elements. The first is at a multiple of kNormLeafNumel elements of its
// parameter; the last leaf may be shorter.
struct GradientSpan {
  ComputeType type = ComputeType::kFp32;
  int n_grads = 1;                     // gradients to sum, in FP32, in this order
  const void* const* grads = nullptr;  // n_grads arrays of `type`
  float* grad_sum = nullptr;           // the FP32 sum over micro-steps; null: there is only one
  bool begins_sum = true;              // sum = gradients, else sum = sum + gradients
  size_t numel = 0;
};

// Sums up the gradients. If `squares` is given, also adds the squares of the result: of grad_sum
// after this micro-step, or of the sum over ranks. In a leaf, lane l of 16 adds the squares of
// elements l, l + 16, l + 32, l + 48, in FP64. Then lanes l and l + 8 are added, then l + 4, l + 2,
// l + 1.
// REQUIRES: as for adam_update. Nothing checks the arrays.
void take_gradients(Isa isa, const GradientSpan& span, NormSum* squares);

}  // namespace elixir::optim
