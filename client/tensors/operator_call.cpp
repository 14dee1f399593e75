#include "client/tensors/operator_call.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_set>

#include "client/tensors/chunk_storage.h"

namespace elixir {

CallHash& CallHash::add(uint64_t word) {
  constexpr uint64_t kOdd = 0xbf58476d1ce4e5b9;
  constexpr int kTurn = 29;
  value_ = std::rotl(value_ ^ word, kTurn) * kOdd;
  value_ ^= value_ >> 32U;
  return *this;
}

void CallHash::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    add(1);
    return;
  }
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool gradients = question_ == CallQuestion::kShapes && impl.requires_grad();
  add(impl.key_set().raw_repr());
  add((uint64_t{impl.dtype().itemsize()} << 32U) | static_cast<uint64_t>(tensor.scalar_type()));
  add((static_cast<uint64_t>(tensor.device().type()) << 8U) ^
      static_cast<uint64_t>(tensor.device().index()) ^ (uint64_t{gradients} << 32U));
  if (tensor.is_nested() || impl.layout() != at::kStrided) return;
  // A parameter's place in its chunk differs by layer, and no result depends on it.
  const bool in_chunk = chunk_storage_of(tensor) != nullptr;
  add(in_chunk ? 0 : static_cast<uint64_t>(impl.storage_offset()));
  for (const int64_t size : impl.sizes()) add(static_cast<uint64_t>(size));
  for (const int64_t stride : impl.strides()) add(~static_cast<uint64_t>(stride));
}

bool CallHash::add(const c10::IValue& value) {
  if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isNone()) {
    add(2);
  } else if (value.isInt()) {
    add(static_cast<uint64_t>(value.toInt())).add(3);
  } else if (value.isDouble()) {
    if (question_ == CallQuestion::kValues) add(std::bit_cast<uint64_t>(value.toDouble()));
    add(4);
  } else if (value.isBool()) {
    add(value.toBool() ? 5 : 6);
  } else if (value.isString()) {
    add(std::hash<std::string_view>()(value.toStringRef()));
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    add((static_cast<uint64_t>(device.type()) << 8U) ^ static_cast<uint64_t>(device.index()));
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    add(elements.size());
    return std::all_of(elements.begin(), elements.end(),
                       [this](const c10::IValue& element) { return add(element); });
  } else {
    return false;
  }
  return true;
}

std::optional<uint64_t> hash_of_call(const c10::OperatorHandle& op, const c10::IValue* arguments,
                                     size_t n, CallQuestion question) {
  CallHash hash(question);
  // The schema's address is the operator's, as long as the operator exists.
  hash.add(reinterpret_cast<uintptr_t>(&op.schema()));
  for (size_t i = 0; i < n; ++i) {
    if (!hash.add(arguments[i])) return std::nullopt;
  }
  return hash.value();
}

const c10::IValue* arguments_of(const c10::OperatorHandle& op,
                                const std::vector<c10::IValue>& stack) {
  return stack.data() + (stack.size() - op.schema().arguments().size());
}

bool is_product(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string_view> products = {
      "aten::mm",
      "aten::addmm",
      "aten::bmm",
      "aten::baddbmm",
      "aten::linear",
      "aten::convolution",
      "aten::_grouped_mm",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_cudnn_attention"};
  return products.contains(op.schema().name());
}

bool draws_nothing(const c10::OperatorHandle& op, const c10::IValue* arguments) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return true;
  const std::vector<c10::Argument>& declared = op.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name() == "dropout_p") return arguments[i].toDouble() == 0;
  }
  return false;
}

}  // namespace elixir
