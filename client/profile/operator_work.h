#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

#include "planner/profile.h"

namespace elixir {

// Describes an operator in two calls, before and after it runs, because operators in place change
// what they are given.
class OperatorDescription {
 public:
  // `stack` ends with the operator's arguments. Tensors on other devices do not count.
  OperatorDescription(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                      at::Device device);
  // `stack` ends with what the operator has returned. A result that shares an argument's storage is
  // a view, which costs nothing, unless the operator works in place.
  planner::OperatorWork with_results(const c10::OperatorHandle& op,
                                     const std::vector<c10::IValue>& stack,
                                     bool in_place = false) const;

 private:
  const at::Device device_;
  planner::OperatorWork work_;
  bool complete_ = false;  // results add nothing
  bool writes_ = false;    // into an argument
  double written_arguments_ = 0;
  std::vector<const c10::StorageImpl*> storages_;  // those of the arguments
};

}  // namespace elixir
