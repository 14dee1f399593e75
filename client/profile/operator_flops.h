#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace elixir {

// Floating-point operations of one operator: 2 * m * n * k for each matrix product. Other operators
// count 0, because their memory accesses determine their time. Fused attention counts the whole
// square of scores, causal or not: 2 products forward and 5 backward. `stack` ends with the
// operator's arguments.
double operator_flops(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack);

}  // namespace elixir
