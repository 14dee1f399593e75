// Chooses the operators, of torch and of other libraries, that are intercepted, and the dispatch
// key of each.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "client/tensors/dispatch_key.h"
#include "client/tensors/intercept.h"

namespace elixir {
namespace {
class EveryOperator;
}
}  // namespace elixir

// LibTorch declares every instance of this template a friend of its operators. This instance gives
// the listener what LibTorch's own registration has: an operator's table of kernels.
template <>
class c10::TypedOperatorHandle<elixir::EveryOperator> final {
 public:
  static c10::impl::OperatorEntry& entry_of(const c10::OperatorHandle& op) {
    return op.operatorDef_->op;
  }
};

namespace elixir {
namespace {

using c10::DispatchKey;

bool may_hold_tensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::StorageType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::AnyListType:
    case c10::TypeKind::AnyTupleType:
    case c10::TypeKind::AnyClassType:
    case c10::TypeKind::InterfaceType:
      return true;
    default:
      return std::any_of(type->containedTypes().begin(), type->containedTypes().end(),
                         may_hold_tensors);
  }
}

// As LibTorch's DispatchKeyExtractor::isDispatchType().
bool brings_keys(const c10::Type& type) {
  return type.isSubtypeOf(*c10::TensorType::get()) ||
         type.isSubtypeOf(*c10::OptionalType::ofTensor()) ||
         type.isSubtypeOf(*c10::ListType::ofTensors()) ||
         type.isSubtypeOf(*c10::ListType::ofOptionalTensors());
}

// Tensors that bring no key: in dictionaries, tuples, nested lists, and storages.
bool holds_tensors_unseen(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) {
                       return may_hold_tensors(argument.type()) && !brings_keys(*argument.type());
                     });
}

// A tensor of another layout and a parameter may come together.
bool takes_several_tensors(const c10::FunctionSchema& schema) {
  size_t tensors = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!may_hold_tensors(argument.type())) continue;
    tensors += argument.type()->kind() == c10::TypeKind::ListType ? 2 : 1;
  }
  return tensors > 1;
}

// Layouts whose dispatch keys lie above kChunkKey: their kernels run first and read what they are
// given.
std::vector<DispatchKey> layout_keys() {
  std::vector<DispatchKey> keys{DispatchKey::MkldnnCPU};
  using c10::BackendComponent;
  for (const DispatchKey layout :
       {DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::NestedTensor}) {
    for (const BackendComponent backend :
         {BackendComponent::CPUBit, BackendComponent::CUDABit, BackendComponent::MetaBit}) {
      keys.push_back(c10::toRuntimePerBackendFunctionalityKey(layout, backend));
    }
  }
  return keys;
}

// In the place of a kernel for such a layout.
class LayoutKernel final : public c10::OperatorKernel {
 public:
  explicit LayoutKernel(c10::KernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    intercept_layout(kernel_, op, keys, stack);
  }

 private:
  const c10::KernelFunction kernel_;
};

// Operators that consist of others, and have a kernel of their own for some device. An observer
// sees every operator at kChunkKey, where LibTorch would put their parts in their place. That must
// not be another way than without an observer.
bool has_a_kernel_beside_its_parts(const std::string& name) {
  static const std::unordered_set<std::string_view> names = {
      "aten::_fused_rms_norm", "aten::native_channel_shuffle", "aten::silu_backward",
      "aten::mish_backward"};
  return names.contains(name);
}

bool holds_a_parameter(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         value.toTensor().key_set().has(kChunkKey);
}

// At kChunkKey for these: their parts if a parameter is among the arguments, as LibTorch does, else
// the kernel for the device.
class PartsOfParameters final : public c10::OperatorKernel {
 public:
  explicit PartsOfParameters(c10::KernelFunction parts) : parts_(std::move(parts)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto first = stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size());
    if (std::any_of(first, stack->end(), holds_a_parameter)) {
      parts_.callBoxed(op, keys, stack);
    } else {
      intercept(op, keys, stack);
    }
  }

 private:
  const c10::KernelFunction parts_;
};

// LibTorch warns of a kernel that replaces another one. LayoutKernel means to, and calls it.
class MeantToReplace {
 private:
  class Silent final : public c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard guard_{&silent_};
};

// LibTorch tells it of every operator, also of those in libraries that load later, when it knows
// their schemas and none of their kernels yet. It holds the dispatcher's lock while it does. The
// functions that register a kernel take that lock, so the listener writes to the operator's table.
class EveryOperator final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    at_chunk_key(op);
    at_layouts(op);
    at_every_call(op);
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}

 private:
  static void add(const c10::OperatorHandle& op, DispatchKey key, c10::KernelFunction kernel,
                  const char* name) {
    c10::TypedOperatorHandle<EveryOperator>::entry_of(op).registerKernel(
        c10::Dispatcher::singleton(), key, std::move(kernel), std::nullopt, nullptr, name);
  }

  static void warn(const c10::OperatorHandle& op, const char* key, const char* what) {
    log_warn("operator_unseen",
             "operator=\"{}\" why=\"it has a kernel of its own for {}\" effect=\"it does not see "
             "{}\" remedy=\"give it copies, or tensors as arguments\"",
             toString(op.operator_name()), key, what);
  }

  // By name. A fallback would be asked after an operator's CompositeExplicitAutograd kernel, which
  // may read memory, and would hide the kernel that the operator has for the device.
  void at_chunk_key(const c10::OperatorHandle& op) {
    if (op.hasKernelForDispatchKey(kChunkKey)) {
      const bool own = own_.contains(op.operator_name());  // its library was unloaded, and is back
      if (!own) warn(op, "CustomRNGKeyId", "parameters");
      return;
    }
    own_.insert(op.operator_name());
    const std::string& name = op.operator_name().name;
    if (name.starts_with("aten::")) {
      // Such an operator reads nothing itself: it calls leaf operators, and those are intercepted.
      if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
        if (has_a_kernel_beside_its_parts(name)) {
          add(op, kChunkKey,
              c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<PartsOfParameters>(
                  c10::TypedOperatorHandle<EveryOperator>::entry_of(op).kernelForDispatchKey(
                      DispatchKey::CompositeImplicitAutograd))),
              "elixir::PartsOfParameters");
        }
        return;
      }
      if (name == "aten::as_strided") {
        return add(op, kChunkKey,
                   c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(view_as_strided)),
                   "elixir::view_as_strided");
      }
      if (is_view(op.schema())) {
        return add(op, kChunkKey, c10::KernelFunction::makeFallthrough(), "elixir::view");
      }
    }
    add(op, kChunkKey, c10::KernelFunction::makeFromBoxedFunction<&intercept>(),
        "elixir::intercept");
  }

  void at_layouts(const c10::OperatorHandle& op) const {
    if (!takes_several_tensors(op.schema())) return;
    for (const DispatchKey key : layouts_) {
      if (!op.hasKernelForDispatchKey(key) || op.isKernelFallthroughKernel(key)) continue;
      const MeantToReplace silent;
      c10::KernelFunction kernel =
          c10::TypedOperatorHandle<EveryOperator>::entry_of(op).kernelForDispatchKey(key);
      add(op, key,
          c10::KernelFunction::makeFromBoxedFunctor(
              std::make_unique<LayoutKernel>(std::move(kernel))),
          "elixir::LayoutKernel");
    }
  }

  static void at_every_call(const c10::OperatorHandle& op) {
    if (!holds_tensors_unseen(op.schema())) return;
    if (op.hasKernelForDispatchKey(kEveryCallsKey)) {
      return warn(op, "BackendSelect",
                  "parameters inside of its dictionaries, tuples and nested lists");
    }
    add(op, kEveryCallsKey, c10::KernelFunction::makeFromBoxedFunction<&intercept_containers>(),
        "elixir::intercept_containers");
  }

  const std::vector<DispatchKey> layouts_ = layout_keys();
  std::unordered_set<c10::OperatorName>
      own_;  // registered at kChunkKey; under the dispatcher's lock
};

}  // namespace

// An operator that is not intercepted runs as if its tensors did not carry the key.
TORCH_LIBRARY_IMPL(_, CustomRNGKeyId, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// Never deregistered: threads may be dispatching.
void intercept_operators() {
  static auto* const listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<EveryOperator>()));
  (void)listening;
}

}  // namespace elixir
