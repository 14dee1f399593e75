#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "client/tensors/dispatch_key.h"

namespace c10 {
class OperatorHandle;
}

namespace elixir {

// Before the first operator on a chunk view: the dispatcher fallback of interception.cpp is linked
// in, and torch's operators that make a view pass by it, since a view reads no byte. Operators that
// take tensors in containers are intercepted, too, also those that a library registers later. Any
// thread.
void keep_interception();

// Runs the operators of one thread in the interception's place, as client/profile does.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;

  // Must run `op` with the keys `below`: op.redispatchBoxed(below, stack). The chunks that the
  // operator reads have been acquired; they are released after it.
  virtual void run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                   std::vector<c10::IValue>* stack) = 0;
};

// While it lives, every leaf operator of this thread passes `observer`, also one that reads no
// parameter, but for torch's views; and those of a backward that starts on this thread and stays on
// it (of CPU and meta tensors).
class ObservedOperators {
 public:
  explicit ObservedOperators(OperatorObserver* observer);
  ~ObservedOperators();
  ObservedOperators(const ObservedOperators&) = delete;
  ObservedOperators& operator=(const ObservedOperators&) = delete;

 private:
  OperatorObserver* const before_;
  c10::impl::IncludeDispatchKeyGuard every_operator_{kChunkKey};
};

}  // namespace elixir
