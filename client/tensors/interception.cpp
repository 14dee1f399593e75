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
#include <mutex>
#include <utility>

#include "base/throw_error.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/dispatch_key.h"
#include "client/tensors/grad_mark.h"
#include "client/tensors/parameter_reads.h"

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

void collect(const c10::IValue& value, const c10::Argument& argument, const c10::OperatorHandle& op,
             PinnedChunks* pins) {
  if (value.isTensor()) {
    collect(value.toTensor(), argument, op, pins);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) collect(tensor, argument, op, pins);
  } else if (value.isList()) {  // optional tensors
    for (const c10::IValue& element : value.toListRef()) collect(element, argument, op, pins);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      collect(entry.key(), argument, op, pins);
      collect(entry.value(), argument, op, pins);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      collect(element, argument, op, pins);
    }
  }
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
  const c10::FunctionSchema& schema = op.schema();
  if (done_with_marks(op, stack)) return;
  PinnedChunks pins;
  if (!is_view(schema)) {
    const auto& arguments = schema.arguments();
    const c10::IValue* values = stack->data() + (stack->size() - arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) collect(values[i], arguments[i], op, &pins);
    pins.pin(op.operator_name().name.c_str());
  }
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kChunkKey);
  if (observer != nullptr) {
    observer->run(op, below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

// LibTorch dispatches by tensors and lists of them alone: what is in a dictionary or a tuple brings
// no key, and a storage none either. Operators that take such come here at a key that every call
// has, and go on below it.
constexpr c10::DispatchKey kEveryCallsKey = c10::DispatchKey::BackendSelect;

c10::DispatchKeySet below_every_call(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kEveryCallsKey);
}

void intercept_containers(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
  PinnedChunks pins;
  const auto& arguments = op.schema().arguments();
  const c10::IValue* values = stack->data() + (stack->size() - arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (values[i].isStorage()) {
      refuse_memory(values[i].toStorage(), op);
    } else {
      collect(values[i], arguments[i], op, &pins);
    }
  }
  pins.pin(op.operator_name().name.c_str());
  op.redispatchBoxed(below_every_call(keys), stack);
}

bool holds_tensors_unseen(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::StorageType:
    case c10::TypeKind::DictType:
    case c10::TypeKind::TupleType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return std::any_of(type->containedTypes().begin(), type->containedTypes().end(),
                         holds_tensors_unseen);
    default:
      return false;
  }
}

// Operators of all libraries. A library that loads later is found when the next optimizer is built.
void intercept_operators_with_containers() {
  struct Intercepted {
    std::mutex mutex;
    std::vector<std::unique_ptr<torch::Library>> libraries;
  };
  static auto* const known = new Intercepted;  // never unregistered: threads may be dispatching
  const std::lock_guard<std::mutex> lock(known->mutex);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || op->hasKernelForDispatchKey(kEveryCallsKey)) continue;  // its own, or ours already
    const auto& arguments = op->schema().arguments();
    const bool unseen = std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
      return holds_tensors_unseen(argument.type());
    });
    if (!unseen) continue;
    const std::string library = name.name.substr(0, name.name.find("::"));
    auto& own = known->libraries.emplace_back(std::make_unique<torch::Library>(
        torch::Library::IMPL, library, kEveryCallsKey, __FILE__, static_cast<uint32_t>(__LINE__)));
    own->impl(toString(name).c_str(),
              torch::CppFunction::makeFromBoxedFunction<&intercept_containers>());
  }
}

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
  intercept_operators_with_containers();
}

ObservedOperators::ObservedOperators(OperatorObserver* watching)
    : before_(std::exchange(observer, watching)) {}

ObservedOperators::~ObservedOperators() { observer = before_; }

}  // namespace elixir
