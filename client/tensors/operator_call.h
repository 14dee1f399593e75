#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <vector>

// Calls of operators, compared and described. Two runs of a function make equal calls if their
// operators and arguments are equal, without the values of tensors.

namespace elixir {

// The question that two equal calls answer with yes.
// - kShapes: do their results have equal shapes, and does autograd keep the same of them?
//   Floating-point numbers do not matter.
// - kValues: are their results equal if their tensors' values are? Whether tensors require
// gradients
//   does not matter.
enum class CallQuestion : uint8_t { kShapes, kValues };

// A hash over parts of a call. Equal input gives an equal value in one process.
class CallHash {
 public:
  explicit CallHash(CallQuestion question = CallQuestion::kShapes,
                    uint64_t start = 0x9e3779b97f4a7c15)
      : question_(question), value_(start) {}

  CallHash& add(uint64_t word);
  void add(const at::Tensor& tensor);
  // False: it holds something that cannot be compared.
  bool add(const c10::IValue& value);
  uint64_t value() const { return value_; }

 private:
  const CallQuestion question_;
  uint64_t value_;
};

// Empty: an argument cannot be compared. `arguments` has the operator's `n` arguments.
std::optional<uint64_t> hash_of_call(const c10::OperatorHandle& op, const c10::IValue* arguments,
                                     size_t n, CallQuestion question);

// The first of the operator's arguments, which are on top of the stack.
const c10::IValue* arguments_of(const c10::OperatorHandle& op,
                                const std::vector<c10::IValue>& stack);

// Whether the operator is a product of matrices, a convolution or fused attention.
bool is_product(const c10::OperatorHandle& op);

// Whether equal arguments give equal results: it draws no random numbers.
bool draws_nothing(const c10::OperatorHandle& op, const c10::IValue* arguments);

}  // namespace elixir
