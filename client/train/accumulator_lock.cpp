#include "client/train/accumulator_lock.h"

#include <torch/csrc/autograd/variable.h>

namespace elixir {
namespace {

// An explicit instantiation may name a protected member ([temp.spec.general]).
template <auto Member>
struct AccumulatorMutex {
  friend std::mutex& mutex_of(torch::autograd::Node& accumulator) { return accumulator.*Member; }
};
std::mutex& mutex_of(torch::autograd::Node& accumulator);
template struct AccumulatorMutex<&torch::autograd::Node::mutex_>;

}  // namespace

AccumulatorLock::AccumulatorLock(const at::Tensor& leaf)
    : accumulator_(torch::autograd::impl::grad_accumulator(leaf)) {
  if (accumulator_ != nullptr) lock_ = std::unique_lock(mutex_of(*accumulator_));
}

AccumulatorLock::AccumulatorLock(const at::Tensor& leaf, std::try_to_lock_t)
    : accumulator_(torch::autograd::impl::grad_accumulator(leaf)) {
  if (accumulator_ != nullptr) {
    lock_ = std::unique_lock(mutex_of(*accumulator_), std::try_to_lock);
  }
}

}  // namespace elixir
