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

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "base/throw_error.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/dispatch_key.h"
#include "client/tensors/grad_mark.h"
#include "client/tensors/intercept.h"
#include "client/tensors/parameter_reads.h"
#include "client/tensors/torch_version.h"

namespace elixir {
namespace {

constexpr unsigned kInlineChunks = 16;

thread_local OperatorObserver* observer = nullptr;
std::atomic<bool> kept = false;

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

c10::DispatchKeySet after(c10::DispatchKeySet keys, c10::DispatchKey key) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

}  // namespace

bool is_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  const c10::AliasInfo* alias = schema.returns()[0].alias_info();
  return alias != nullptr && !alias->isWrite();
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (done_with_marks(op, stack)) return;
  PinnedChunks pins;
  if (!is_view(op.schema())) pin_arguments(op, *stack, &pins);
  run_below(observer, op, after(keys, kChunkKey), stack);
}

void intercept_containers(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
  PinnedChunks pins;
  pin_arguments(op, *stack, &pins);
  op.redispatchBoxed(after(keys, kEveryCallsKey), stack);
}

void intercept_layout(const c10::KernelFunction& kernel, const c10::OperatorHandle& op,
                      c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (done_with_marks(op, stack)) return;
  PinnedChunks pins;
  pin_arguments(op, *stack, &pins);
  kernel.callBoxed(op, keys, stack);
}

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
  return at::_ops::as_strided::redispatch(after(keys, kChunkKey), self, size, stride,
                                          std::move(offset));
}

void keep_interception() {
  require_torch_of_build();
  keep_serialisation_honest();
  intercept_operators();
  kept.store(true, std::memory_order_release);
}

// Its partner is the release in keep_interception(): who sees true sees the operators' kernels.
bool keeps_interception() { return kept.load(std::memory_order_acquire); }

OperatorObserver* operator_observer() { return observer; }

void run_below(OperatorObserver* by, const c10::OperatorHandle& op, c10::DispatchKeySet below,
               std::vector<c10::IValue>* stack) {
  if (by != nullptr) {
    by->run(op, below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

ObservedOperators::ObservedOperators(OperatorObserver* watching)
    : before_(std::exchange(observer, watching)) {}

ObservedOperators::~ObservedOperators() { observer = before_; }

}  // namespace elixir
