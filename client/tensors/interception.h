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

// Call it before the first operator on a chunk view. From then on every operator on one is
// intercepted, also operators of other libraries, loaded before or later, and operators that take
// tensors in containers. Torch's operators that make a view pass by, because a view reads no byte.
// Any thread.
void keep_interception();
// Whether keep_interception() has been called.
bool keeps_interception();

// Runs the operators of one thread in place of the interception. client/profile uses it.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;

  // Must run `op` with the keys `below`: op.redispatchBoxed(below, stack). The operator's chunks
  // have been acquired, and are released after this call.
  virtual void run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                   std::vector<c10::IValue>* stack) = 0;
  // An operator was left out (client/tensors/second_run), after its chunks had been acquired.
  virtual void left_out() {}
};

// Runs `op` below the key, by the observer if there is one.
void run_below(OperatorObserver* observer, const c10::OperatorHandle& op, c10::DispatchKeySet below,
               std::vector<c10::IValue>* stack);

// Counts the operators around the one that runs, which may call others.
class Deeper {
 public:
  explicit Deeper(int* depth) : depth_(depth) { ++*depth_; }
  ~Deeper() { --*depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int* const depth_;
};

// This thread's observer, or null.
OperatorObserver* operator_observer();

// While it lives, `observer` runs every leaf operator of this thread, also operators that read no
// parameter, except torch's views and its operators that choose a device for new memory
// (at::empty). This includes a backward that starts on this thread and stays on it (of CPU and meta
// tensors).
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
