#include "client/tensors/stored_products.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "client/tensors/operator_call.h"

namespace elixir {
namespace {

// A second tensor in the same memory, which autograd can give a history.
c10::IValue alias_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  return at::Tensor(value.toTensor().unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

}  // namespace

void StoredProducts::store(const c10::OperatorHandle& op, std::optional<uint64_t> call,
                           const c10::IValue* results) {
  Product product{.call = call};
  for (size_t i = 0; call && i < op.schema().returns().size(); ++i) {
    product.results.push_back(results[i]);
    const bool tensor = results[i].isTensor() && results[i].toTensor().defined();
    if (tensor) product.versions.note(results[i].toTensor());
  }
  products_.push_back(std::move(product));
}

bool StoredProducts::unwritten(const Product& product) {
  return !product.results.empty() && !product.versions.first_change();
}

void StoredProducts::seal() {
  for (Product& product : products_) {
    if (!unwritten(product)) product.results.clear();
  }
}

std::vector<at::Tensor> StoredProducts::take_out(
    const std::function<bool(const at::Tensor&)>& takes) {
  std::vector<at::Tensor> tensors;
  for (Product& product : products_) {
    for (uint32_t i = 0; i < product.results.size(); ++i) {
      c10::IValue& result = product.results[i];
      if (!result.isTensor() || !takes(result.toTensor())) continue;
      tensors.push_back(std::move(result).toTensor());
      product.taken_out.push_back(i);
    }
  }
  return tensors;
}

void StoredProducts::put_back(const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for (Product& product : products_) {
    for (const uint32_t i : product.taken_out) {
      ELIXIR_CHECK(next < tensors.size(), "{} tensors come back", tensors.size());
      const at::Tensor& tensor = tensors[next++];
      if (i < product.results.size()) product.results[i] = tensor;
    }
  }
  ELIXIR_CHECK(next == tensors.size(), "{} of {} tensors were taken out", next, tensors.size());
}

void StoredProducts::drop() {
  for (Product& product : products_) product.results.clear();
}

std::optional<c10::SmallVector<c10::IValue, 2>> StoredProducts::take(std::optional<uint64_t> call) {
  ELIXIR_CHECK(products_.size() <= most_ && taken_ <= products_.size(),
               "{} of {} stored products taken, at most {}", taken_, products_.size(), most_);
  if (taken_ == products_.size()) return std::nullopt;
  Product& next = products_[taken_++];
  if (!call || next.call != call || !unwritten(next)) return std::nullopt;
  c10::SmallVector<c10::IValue, 2> results;
  for (const c10::IValue& result : next.results) results.push_back(alias_of(result));
  next.results.clear();
  return results;
}

void StoringRun::run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                     std::vector<c10::IValue>* stack) {
  const bool stores = depth_ == 0 && products_.wants_more() && is_product(op);
  std::optional<uint64_t> call;
  if (stores) {
    const c10::IValue* const arguments = arguments_of(op, *stack);
    if (draws_nothing(op, arguments)) {
      call = hash_of_call(op, arguments, op.schema().arguments().size(), CallQuestion::kValues);
    }
  }
  {
    const Deeper inside(&depth_);
    run_below(beside_, op, below, stack);
  }
  if (stores) {
    products_.store(op, call, stack->data() + (stack->size() - op.schema().returns().size()));
  }
}

}  // namespace elixir
