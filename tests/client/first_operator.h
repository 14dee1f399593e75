#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <utility>
#include <vector>

#include "client/tensors/interception.h"

namespace elixir::test {

// Calls `meet` inside the first operator of this thread, once its chunks are pinned. Views do not
// count.
class FirstOperator final : private OperatorObserver {
 public:
  explicit FirstOperator(std::function<void()> meet) : meet_(std::move(meet)) {}

 private:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
           std::vector<c10::IValue>* stack) override {
    if (meet_) std::exchange(meet_, nullptr)();
    op.redispatchBoxed(below, stack);
  }

  std::function<void()> meet_;
  const ObservedOperators observed_{this};
};

}  // namespace elixir::test
