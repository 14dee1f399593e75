// Every operator on a parameter passes here: the chunks it reads are gathered and pinned, the
// operator runs below the key, the pins go. Backward and recomputation are covered because views
// (weight.t()) inherit the key, though making one passes by. No allocation while an operator reads
// at most kInlineChunks chunks.

#include "client/tensors/interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided_ops.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/log.h"
#include "base/throw_error.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/dispatch_key.h"
#include "client/tensors/grad_mark.h"
#include "client/tensors/parameter_reads.h"

namespace elixir {
namespace {
class ContainerListener;
}
}  // namespace elixir

// LibTorch declares every instance of this template a friend of its operators. This instance gives
// the listener what LibTorch's own registration has: an operator's table of kernels.
template <>
class c10::TypedOperatorHandle<elixir::ContainerListener> final {
 public:
  static c10::impl::OperatorEntry& entry_of(const c10::OperatorHandle& op) {
    return op.operatorDef_->op;
  }
};

namespace elixir {
namespace {

constexpr unsigned kInlineChunks = 16;

thread_local OperatorObserver* observer = nullptr;

// The chunks of one operator that one optimizer holds.
struct ChunksOfSource {
  explicit ChunksOfSource(const ChunkStorage& storage) : source(storage.binding()) {
    if (source) return;
    throw Error(error(Code::kInvalidArgument,
                      "a parameter is used after the elixir optimizer that held it is gone: keep "
                      "the optimizer alive as long as the model"));
  }

  SourceUse source;
  c10::SmallVector<uint32_t, kInlineChunks> chunks = {};

  void add(uint32_t chunk) {
    if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);
  }
  std::span<const uint32_t> all() const { return {chunks.data(), chunks.size()}; }
};

// The chunks of one operator. The destructor releases them, also when the operator throws.
class PinnedChunks {
 public:
  ~PinnedChunks() {
    for (size_t i = 0; i < pinned_; ++i) sources_[i].source->release(sources_[i].all());
  }

  void add(const ChunkStorage& storage) {
    const auto of = std::find_if(sources_.begin(), sources_.end(), [&](const auto& source) {
      return source.source.binding() == storage.binding().get();
    });
    if (of != sources_.end()) return of->add(storage.chunk());
    sources_.emplace_back(storage).add(storage.chunk());
  }

  // All threads pin the chunks of several optimizers in one order, so that no two wait for each
  // other's blocks.
  void pin(const char* operator_name) {
    if (sources_.size() > 1) {
      std::sort(sources_.begin(), sources_.end(), [](const auto& a, const auto& b) {
        return std::less<>()(a.source.binding(), b.source.binding());
      });
    }
    for (; pinned_ < sources_.size(); ++pinned_) {
      sources_[pinned_].source->acquire(sources_[pinned_].all(), operator_name);
    }
  }

 private:
  c10::SmallVector<ChunksOfSource, 1> sources_;
  size_t pinned_ = 0;  // so many of them
};

// A view changes sizes and strides, not bytes: nothing to gather.
bool is_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  const c10::AliasInfo* alias = schema.returns()[0].alias_info();
  return alias != nullptr && !alias->isWrite();
}

std::string parameter_of(const ChunkStorage& storage, const at::Tensor& tensor) {
  const SourceUse source(storage.binding());
  const std::string name =
      source ? source->parameter_at(storage.chunk(), tensor.storage_offset()) : std::string();
  return name.empty() ? "a parameter" : "parameter '" + name + "'";
}

[[noreturn]] void refuse_memory(const std::string& of, const c10::OperatorHandle& op) {
  throw Error(error(Code::kInvalidArgument,
                    "{} of a tensor to the memory of {}, which comes and goes: use the parameter "
                    "itself, or a copy of it (parameter.detach().clone())",
                    op.operator_name().name, of));
}

void refuse_memory(const c10::Storage& storage, const c10::OperatorHandle& op) {
  if (dynamic_cast<const ChunkStorage*>(storage.unsafeGetStorageImpl()) == nullptr) return;
  refuse_memory(std::string("parameters"), op);
}

void collect(const at::Tensor& tensor, const c10::Argument& argument, const c10::OperatorHandle& op,
             PinnedChunks* pins) {
  if (!tensor.defined()) return;
  const ChunkStorage* storage = chunk_storage_of(tensor);
  if (storage == nullptr) {
    const GradMark* const mark = grad_mark_of(tensor);
    if (mark != nullptr) mark->refuse(op.operator_name().name.c_str());
    return;
  }
  const std::string& name = op.operator_name().name;
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
    throw Error(
        error(Code::kInvalidArgument,
              "{} writes {} in place, which elixird, the keeper of its FP32 master, would not see: "
              "{}",
              name, parameter_of(*storage, tensor),
              name == "aten::embedding_renorm_"
                  ? "an Embedding with max_norm renormalises its weight in forward; leave max_norm "
                    "out, or renormalise with Optimizer::set_parameter after step()"
                  : "initialise or load parameters before the elixir optimizer is built, or give "
                    "it new values with Optimizer::set_parameter"));
  }
  if (name == "aten::set_") refuse_memory(parameter_of(*storage, tensor), op);
  NotedReads::note(tensor);
  pins->add(*storage);
}

// Everything that a value holds, except what is inside of an object of a C++ class.
void collect(const c10::IValue& value, const c10::Argument& argument, const c10::OperatorHandle& op,
             PinnedChunks* pins) {
  const auto collect_all = [&](const auto& elements) {
    for (const c10::IValue& element : elements) collect(element, argument, op, pins);
  };
  if (value.isTensor()) {
    collect(value.toTensor(), argument, op, pins);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) collect(tensor, argument, op, pins);
  } else if (value.isStorage()) {
    refuse_memory(value.toStorage(), op);
  } else if (value.isList()) {
    collect_all(value.toListRef());
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      collect(entry.key(), argument, op, pins);
      collect(entry.value(), argument, op, pins);
    }
  } else if (value.isTuple()) {
    collect_all(value.toTupleRef().elements());
  } else if (value.isObject()) {
    collect_all(value.toObjectRef().slots());
  }
}

// Pins the chunks of all arguments, which are on top of the stack.
void pin_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                   PinnedChunks* pins) {
  const auto& arguments = op.schema().arguments();
  const c10::IValue* const values = stack.data() + (stack.size() - arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) collect(values[i], arguments[i], op, pins);
  pins->pin(op.operator_name().name.c_str());
}

// What may be done with a whole mark in a gradient's place, in the operator's place: zeroing it, as
// zero_grad(set_to_none = false) does, and adding the next gradient to it, as autograd does. True:
// that was it; the stack holds what the operator returns.
bool done_with_marks(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  const auto whole_mark = [](const at::Tensor& tensor) -> GradMark* {
    GradMark* const mark = grad_mark_of(tensor);
    return mark != nullptr && mark->is_whole(tensor) ? mark : nullptr;
  };
  const auto mark_at = [&](size_t argument) {
    return whole_mark(
        (*stack)[stack->size() - op.schema().arguments().size() + argument].toTensor());
  };
  if (name == "aten::zero_") {
    GradMark* const mark = mark_at(0);
    if (mark != nullptr) mark->zero();
    return mark != nullptr;
  }
  const std::string& overload = op.operator_name().overload_name;
  const bool adds = name == "aten::add_", sums = name == "aten::add";
  if ((adds || sums) && overload == "Tensor") {
    GradMark* const mark = mark_at(0);
    const at::Tensor other = (*stack)[stack->size() - 2].toTensor();
    if (mark == nullptr || !stack->back().toScalar().equal(1) ||
        (sums &&
         !(at::GradMode::is_enabled() && torch::autograd::get_current_graph_task_id() != -1))) {
      return false;
    }
    torch::jit::drop(*stack, 2);
    if (adds) {
      mark->add(other);
    } else {
      mark->set_summed();
      stack->back() = other.clone();
    }
    return true;
  }
  if (name != "aten::_foreach_zero_" || !overload.empty()) return false;
  const std::vector<at::Tensor> tensors = stack->back().toTensorVector();
  const auto is_mark = [&](const at::Tensor& tensor) { return whole_mark(tensor) != nullptr; };
  if (!std::all_of(tensors.begin(), tensors.end(), is_mark)) return false;
  for (const at::Tensor& tensor : tensors) grad_mark_of(tensor)->zero();
  stack->pop_back();
  return true;
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (done_with_marks(op, stack)) return;
  PinnedChunks pins;
  if (!is_view(op.schema())) pin_arguments(op, *stack, &pins);
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kChunkKey);
  if (observer != nullptr) {
    observer->run(op, below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

// LibTorch dispatches by tensors and plain lists of them alone: a tensor inside anything else
// brings no key, and neither does a storage. Operators that take such come here at a key that every
// call has, and go on below it.
constexpr c10::DispatchKey kEveryCallsKey = c10::DispatchKey::BackendSelect;

void intercept_containers(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
  PinnedChunks pins;
  pin_arguments(op, *stack, &pins);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kEveryCallsKey),
                     stack);
}

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

bool holds_tensors_unseen(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) {
                       return may_hold_tensors(argument.type()) && !brings_keys(*argument.type());
                     });
}

// LibTorch tells it of every operator, also of those in libraries that load later. It holds the
// dispatcher's lock while it does. The functions that register a kernel take that lock, so the
// listener writes to the operator's table.
class ContainerListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    if (!holds_tensors_unseen(op.schema())) return;
    if (op.hasKernelForDispatchKey(kEveryCallsKey)) {
      log_warn("operator_unseen",
               "operator=\"{}\" why=\"it has a kernel of its own for BackendSelect\" effect=\"it "
               "does not see parameters inside of its dictionaries, tuples and nested lists\" "
               "remedy=\"give it copies, or tensors as arguments\"",
               toString(op.operator_name()));
      return;
    }
    c10::TypedOperatorHandle<ContainerListener>::entry_of(op).registerKernel(
        c10::Dispatcher::singleton(), kEveryCallsKey,
        c10::KernelFunction::makeFromBoxedFunction<&intercept_containers>(), std::nullopt, nullptr,
        "elixir::intercept_containers");
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

struct Elements {
  int64_t first, last;
};
Elements elements_of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  Elements elements{offset, offset};
  for (size_t i = 0; i < std::min(sizes.size(), strides.size()); ++i) {
    elements.last += (sizes[i] - 1) * strides[i];
  }
  return elements;
}

// The one view that could leave its tensor: behind a parameter lies its chunk's next one.
at::Tensor view_as_strided(c10::DispatchKeySet keys, const at::Tensor& self,
                           c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                           std::optional<c10::SymInt> offset) {
  const ChunkStorage* const storage = chunk_storage_of(self);
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (storage != nullptr && std::find(sizes.begin(), sizes.end(), 0) == sizes.end()) {
    const int64_t begin = offset ? offset->expect_int() : self.storage_offset();
    const Elements asked = elements_of(sizes, C10_AS_INTARRAYREF_SLOW(stride), begin);
    const Elements own = elements_of(self.sizes(), self.strides(), self.storage_offset());
    if (self.numel() == 0 || asked.first < own.first || asked.last > own.last) {
      throw Error(error(Code::kInvalidArgument,
                        "aten::as_strided of {} asks for elements {} to {} of the chunk that it "
                        "lies in, and has {} to {}: leave the storage offset out, or count it from "
                        "storage_offset()",
                        parameter_of(*storage, self), asked.first, asked.last, own.first,
                        own.last));
    }
  }
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kChunkKey);
  return at::_ops::as_strided::redispatch(below, self, size, stride, std::move(offset));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

// The linker drops an object of a static library that nothing names, and the registration above
// with it. (Views are registered here, once torch's operators are, and never unregistered: threads
// may be dispatching.)
void keep_interception() {
  keep_serialisation_honest();
  static torch::Library* const views = [] {
    auto* const library = new torch::Library(torch::Library::IMPL, "aten", kChunkKey, __FILE__,
                                             static_cast<uint32_t>(__LINE__));
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op || !name.name.starts_with("aten::") || !is_view(op->schema())) continue;
      if (name.name == "aten::as_strided") continue;
      library->impl(toString(name).c_str(), torch::CppFunction::makeFallthrough());
    }
    library->impl("as_strided", TORCH_FN(view_as_strided));
    return library;
  }();
  (void)views;
  static auto* const listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<ContainerListener>()));
  (void)listening;  // never deregistered, as above
}

ObservedOperators::ObservedOperators(OperatorObserver* watching)
    : before_(std::exchange(observer, watching)) {}

ObservedOperators::~ObservedOperators() { observer = before_; }

}  // namespace elixir
