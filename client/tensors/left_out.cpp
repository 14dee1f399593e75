#include "client/tensors/left_out.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "client/tensors/operator_call.h"

namespace elixir {

extern const char kNoMemory[] =
    "this tensor was not computed again: it is in the second run of a function of "
    "elixir::checkpoint(), behind the last operator whose result backward reads. Read it in the "
    "first run, or set ELIXIR_STOP_EARLY=0";

namespace {

// Operators whose schema does not say that they write statistics, or that the shape of their result
// depends on values.
bool does_more_than_it_says(const std::string& name) {
  static const std::unordered_set<std::string_view> names = {
      "aten::native_batch_norm",       "aten::cudnn_batch_norm",
      "aten::miopen_batch_norm",       "aten::batch_norm_update_stats",
      "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts",
      "aten::_unsafe_index",           "aten::_padded_dense_to_jagged_forward",
      "aten::_pack_padded_sequence",
  };
  return names.contains(name);
}

// Its results follow from its arguments, in shape from their shapes, and it does nothing else.
bool is_pure(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& returns = op.schema().returns();
  const bool tensors = std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::TensorType;
  });
  return tensors && !returns.empty() && op.schema().name().starts_with("aten::") &&
         !does_more_than_it_says(op.schema().name()) &&
         !op.hasTag(at::Tag::nondeterministic_seeded) &&
         !op.hasTag(at::Tag::data_dependent_output) && !op.hasTag(at::Tag::dynamic_output_shape) &&
         !op.hasTag(at::Tag::inplace_view);
}

bool is_plain(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.device() == device && tensor.storage_offset() == 0 && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() &&
         typeid(*tensor.unsafeGetTensorImpl()) == typeid(c10::TensorImpl);
}

void for_each_tensor(const c10::IValue& value, const auto& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// The device of all its tensors; none if they have several.
std::optional<c10::Device> device_of(const c10::IValue* arguments, size_t n) {
  std::optional<c10::Device> device;
  bool one = true;
  for (size_t i = 0; i < n; ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
      one = one && (!device || *device == tensor.device());
      device = tensor.device();
    });
  }
  return one ? device : std::nullopt;
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const bool has = tensor.defined() && tensor.has_storage();
  return has ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

void add_storage(const at::Tensor& tensor, WeakMemory* storages) {
  if (!tensor.has_storage()) return;
  storages->emplace_back(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

// The argument that a returned one is, as at::add_ returns self; -1: it is none.
int32_t written_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!writes(result)) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

LeftOutTensor described(const at::Tensor& tensor, int32_t lies_in) {
  LeftOutTensor result{.lies_in = lies_in,
                       .keys = tensor.key_set(),
                       .type = tensor.dtype(),
                       .device = tensor.device(),
                       .bytes = tensor.storage().nbytes()};
  result.sizes.append(tensor.sizes().begin(), tensor.sizes().end());
  result.strides.append(tensor.strides().begin(), tensor.strides().end());
  return result;
}

c10::Storage without_memory(const LeftOutTensor& like) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), like.bytes, at::DataPtr(nullptr, like.device), nullptr,
      /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kNoMemory);
  return storage;
}

at::Tensor placeholder(const LeftOutTensor& like, c10::Storage storage) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), like.keys, like.type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes, like.strides);
  return tensor;
}

}  // namespace

ObservedCall::ObservedCall(const c10::OperatorHandle& called, const std::vector<c10::IValue>& stack,
                           std::optional<uint64_t> call)
    : op{.call = call.value_or(0)}, product_(is_product(called)) {
  const c10::FunctionSchema& schema = called.schema();
  const c10::IValue* const arguments = arguments_of(called, stack);
  const size_t n = schema.arguments().size();
  device_ = device_of(arguments, n);
  impure_ = !call || !device_ || !is_pure(called);
  arguments_.append(arguments, arguments + n);
  for (size_t i = 0; i < n; ++i) {
    if (!writes(schema.arguments()[i])) continue;
    op.writes = true;
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      add_storage(tensor, &written_);
      changed_.push_back(storage_of(tensor));
    });
  }
  shapes_ = written_shapes(schema);
}

// Sizes and strides of the tensors that the operator writes to.
c10::SmallVector<int64_t, 8> ObservedCall::written_shapes(const c10::FunctionSchema& schema) const {
  c10::SmallVector<int64_t, 8> shapes;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!writes(schema.arguments()[i])) continue;
    for_each_tensor(arguments_[i], [&](const at::Tensor& tensor) {
      if (tensor.is_nested() || tensor.layout() != at::kStrided) return;
      shapes.append(tensor.sizes().begin(), tensor.sizes().end());
      shapes.append(tensor.strides().begin(), tensor.strides().end());
    });
  }
  return shapes;
}

void ObservedCall::with_results(const c10::OperatorHandle& called,
                                const std::vector<c10::IValue>& stack) {
  const c10::FunctionSchema& schema = called.schema();
  if (written_shapes(schema) != shapes_) impure_ = true;
  const size_t n = schema.returns().size();
  for (size_t i = 0; i < n && !impure_; ++i) {
    const c10::Argument& declared = schema.returns()[i];
    const int32_t argument = written_argument(schema, declared);
    if (argument >= 0) {
      op.results.push_back({.argument = argument});
      continue;
    }
    const at::Tensor& result = stack[stack.size() - n + i].toTensor();
    impure_ = declared.alias_info() != nullptr || !is_plain(result, *device_);
    if (impure_) break;
    const auto in = std::find_if(arguments_.begin(), arguments_.end(), [&](const auto& value) {
      return value.isTensor() && storage_of(value.toTensor()) == storage_of(result);
    });
    const bool own = in == arguments_.end();
    op.results.push_back(
        described(result, own ? -1 : static_cast<int32_t>(in - arguments_.begin())));
    add_storage(result, &written_);
    if (own) made_.push_back(storage_of(result));
  }
  arguments_.clear();
}

bool ObservedCall::needed() const { return impure_ || any_alive(written_); }

bool any_alive(const WeakMemory& memory) {
  return std::any_of(memory.begin(), memory.end(),
                     [](const auto& storage) { return storage.use_count() > 0; });
}

bool may_leave_out(const LeftOutOperator& known, const c10::OperatorHandle& op,
                   const std::vector<c10::IValue>& stack, std::optional<uint64_t> call,
                   const WeakMemory& placeholders) {
  if (!call || known.call != *call) return false;
  bool own = true;
  for (size_t i = 0; known.writes && i < op.schema().arguments().size(); ++i) {
    if (!writes(op.schema().arguments()[i])) continue;
    for_each_tensor(arguments_of(op, stack)[i], [&](const at::Tensor& tensor) {
      own = own && std::any_of(placeholders.begin(), placeholders.end(), [&](const auto& made) {
              return made._unsafe_get_target() == storage_of(tensor);
            });
    });
  }
  return own;
}

void leave_out(const LeftOutOperator& known, const c10::OperatorHandle& op,
               std::vector<c10::IValue>* stack, WeakMemory* placeholders) {
  ELIXIR_CHECK(known.results.size() == op.schema().returns().size(),
               "{} returns {} tensors, and {} are known", op.schema().name(),
               op.schema().returns().size(), known.results.size());
  const c10::IValue* const arguments = arguments_of(op, *stack);
  c10::SmallVector<c10::IValue, 2> results;
  for (const LeftOutTensor& result : known.results) {
    if (result.argument >= 0) {
      results.push_back(arguments[result.argument]);
    } else if (result.lies_in >= 0) {
      results.emplace_back(placeholder(result, arguments[result.lies_in].toTensor().storage()));
    } else {
      at::Tensor tensor = placeholder(result, without_memory(result));
      add_storage(tensor, placeholders);
      results.emplace_back(std::move(tensor));
    }
  }
  stack->resize(stack->size() - op.schema().arguments().size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace elixir
