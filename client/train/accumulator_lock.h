#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <mutex>

#include "client/tensors/torch_version.h"

namespace elixir {

// While it lives, autograd adds nothing to a leaf's .grad. Backward passes of several threads may
// add to one .grad. LibTorch's accumulator has a mutex for that, but runs the hook that takes the
// gradient outside of it. A leaf that requires no gradients has no accumulator, and nothing is
// added to it. Lock it before an engine's mutex.
class AccumulatorLock {
 public:
  explicit AccumulatorLock(const at::Tensor& leaf);
  // It does not wait if another thread holds the lock: see held().
  AccumulatorLock(const at::Tensor& leaf, std::try_to_lock_t);

  bool held() const { return accumulator_ == nullptr || lock_.owns_lock(); }

 private:
  const AccumulatorPointer accumulator_;  // null: there is none
  std::unique_lock<std::mutex> lock_;
};

}  // namespace elixir
