#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <vector>

// Operators that a second run of a checkpointed region leaves out (client/tensors/second_run.h).

namespace elixir {

using WeakMemory = c10::SmallVector<c10::weak_intrusive_ptr<c10::StorageImpl>, 2>;

// LibTorch's error for a tensor whose operator was left out.
extern const char kNoMemory[];

// One result of an operator that is left out.
struct LeftOutTensor {
  int32_t argument = -1;  // it is this argument, which the operator writes; -1: a new tensor
  // The new tensor lies in this argument's memory, as at::_unsafe_view's does; -1: in its own.
  int32_t lies_in = -1;
  c10::SmallVector<int64_t, 4> sizes = {}, strides = {};
  c10::DispatchKeySet keys = {};
  caffe2::TypeMeta type = {};
  c10::Device device = c10::Device(at::kCPU);
  size_t bytes = 0;
};

struct LeftOutOperator {
  bool writes = false;  // to an argument
  uint64_t call = 0;    // hash of the operator and its arguments, without values of tensors
  c10::SmallVector<LeftOutTensor, 1> results = {};
};

// One operator of an observed run.
class ObservedCall {
 public:
  // Before the operator runs. `call` is its hash; empty: it cannot be compared.
  ObservedCall(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
               std::optional<uint64_t> call);
  // Behind it.
  void with_results(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack);

  // Whether it must run each time. This holds if it does more than compute results from its
  // arguments, and if somebody holds memory that it has made or written.
  bool needed() const;
  // Memory that it wrote, and that was there before; and memory that it made.
  const c10::SmallVector<const c10::StorageImpl*, 2>& changed() const { return changed_; }
  const c10::SmallVector<const c10::StorageImpl*, 2>& made() const { return made_; }
  bool product() const { return product_; }

  LeftOutOperator op;

 private:
  c10::SmallVector<int64_t, 8> written_shapes(const c10::FunctionSchema& schema) const;

  bool impure_ = false, product_ = false;
  std::optional<c10::Device> device_;
  c10::SmallVector<c10::IValue, 8> arguments_;  // until it has run
  c10::SmallVector<int64_t, 8> shapes_;         // sizes and strides of what it writes, before
  WeakMemory written_;
  c10::SmallVector<const c10::StorageImpl*, 2> changed_, made_;
};

// Whether the call is the known one, and writes to no memory but `placeholders`.
bool may_leave_out(const LeftOutOperator& known, const c10::OperatorHandle& op,
                   const std::vector<c10::IValue>& stack, std::optional<uint64_t> call,
                   const WeakMemory& placeholders);
// Puts tensors without memory in the place of the arguments, and adds them to `placeholders`.
void leave_out(const LeftOutOperator& known, const c10::OperatorHandle& op,
               std::vector<c10::IValue>* stack, WeakMemory* placeholders);

bool any_alive(const WeakMemory& memory);

}  // namespace elixir
