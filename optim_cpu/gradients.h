#pragma once

// Gradients before the update: their sum over ranks, the FP32 sum over the rounds of a step, and
// their squares. One pass over memory for all three. As adam.h: arithmetic only, the same bits with
// every instruction set.

#include "base/norm_sum.h"
#include "optim_cpu/adam.h"

namespace elixir::optim {

// `numel` consecutive elements, the first of them at a multiple of kNormLeafNumel elements of its
// parameter; the last leaf may be shorter.
struct GradientSpan {
  ComputeType type = ComputeType::kFp32;
  int n_grads = 1;                     // gradients to sum, in FP32, in this order
  const void* const* grads = nullptr;  // n_grads arrays of `type`
  float* grad_sum = nullptr;           // the FP32 sum over micro-steps; null: there is one
  bool begins_sum = true;              // sum = gradients, else sum = sum + gradients
  size_t numel = 0;
};

// Sums up, and, where `squares` is given, adds the squares of the result: of grad_sum after this
// micro-step, or of the sum over ranks. In a leaf, lane l of 16 adds the squares of elements l,
// l + 16, l + 32, l + 48, in FP64; then lanes are added l and l + 8, l + 4, l + 2, l + 1.
// REQUIRES: as for adam_update, and as there nothing checks it.
void take_gradients(Isa isa, const GradientSpan& span, NormSum* squares);

}  // namespace elixir::optim
