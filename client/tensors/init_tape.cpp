#include "client/tensors/init_tape.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>

#include "base/throw_error.h"
#include "client/tensors/dispatch_key.h"

namespace elixir {
namespace {

// Hangs on the storage, in the place of the memory that it does not have.
struct Tape {
  std::shared_ptr<const TapeContent> content;
};

void delete_tape(void* tape) { delete static_cast<Tape*>(tape); }

Tape* tape_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.is_meta()) return nullptr;
  const c10::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->data_ptr();
  return data.get_deleter() == &delete_tape ? static_cast<Tape*>(data.get_context()) : nullptr;
}

uint64_t next_storage_number() {
  thread_local uint64_t next = 0;
  return ++next;
}

// A storage in the making.
struct Running {
  uint64_t storage = 0;
  c10::Storage memory;
};

c10::Storage memory_of(const TapeContent& content);

at::Tensor on_memory(const c10::Storage& memory, const TapedTensor& tensor) {
  at::Tensor view = at::empty({0}, tensor.dtype);
  view.set_(memory, tensor.offset, tensor.sizes, tensor.strides);
  return view;
}

// Random numbers of the call's own: in its generator argument, or, where it has none, by giving
// torch's default generator another state for as long as it runs; replays on other threads that
// want the same wait. (Such a call runs no other one.)
class OwnRandomNumbers {
 public:
  OwnRandomNumbers(const TapeCall& call, std::vector<c10::IValue>& stack) {
    if (!call.random) return;
    const auto& arguments = call.op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "generator") continue;
      stack[i] = stack[i].isGenerator()
                     ? c10::IValue(stack[i].toGenerator().clone())
                     : c10::IValue(at::make_generator<at::CPUGeneratorImpl>(call.seed));
      return;
    }
    static std::mutex one_at_a_time;
    turn_ = std::unique_lock(one_at_a_time);
    shared_ = at::globalContext().defaultGenerator(at::kCPU);
    const std::lock_guard lock(shared_.mutex());
    before_ = shared_.get_state();
    shared_.set_current_seed(call.seed);
  }
  ~OwnRandomNumbers() {
    if (!shared_.defined()) return;
    const std::lock_guard lock(shared_.mutex());
    shared_.set_state(before_);
  }

 private:
  std::unique_lock<std::mutex> turn_;
  at::Generator shared_;
  at::Tensor before_;
};

void check_unchanged(const TapeCall& call) {
  for (const TapeCall::RealTensor& real : call.real) {
    if (real.tensor._version() == real.version) continue;
    throw Error(error(Code::kInvalidArgument,
                      "a tensor built under MetaInit takes its values from one {} by {}, which has "
                      "been written to since: leave it alone until the model is materialised",
                      c10::str(real.tensor.sizes()), call.op.operator_name().name));
  }
}

void put(std::vector<c10::IValue>& stack, const TapeCall::Slot& slot, at::Tensor tensor) {
  if (slot.element < 0) {
    stack[slot.argument] = std::move(tensor);
  } else if (stack[slot.argument].isTensorList()) {
    stack[slot.argument].toTensorList().set(static_cast<size_t>(slot.element), tensor);
  } else {
    stack[slot.argument].toList().set(static_cast<size_t>(slot.element), tensor);
  }
}

// Runs the call again, on `running` where it wrote in place; returns its results.
std::vector<c10::IValue> run(const TapeCall& call, const Running& running) {
  check_unchanged(call);
  std::vector<c10::IValue> stack = call.arguments;
  for (c10::IValue& value : stack) {  // not into the tape's own list
    if (value.isTensorList()) {
      value = value.toTensorList().copy();
    } else if (value.isList()) {
      value = value.toList().copy();
    }
  }
  for (const TapeCall::Slot& slot : call.slots) {
    const bool own = slot.tensor.content->storage == running.storage;
    put(stack, slot,
        on_memory(own ? running.memory : memory_of(*slot.tensor.content), slot.tensor));
  }
  const OwnRandomNumbers random(call, stack);
  call.op.callBoxed(&stack);
  return stack;
}

c10::Storage memory_of(const TapeContent& content) {
  if (content.call != nullptr && content.result >= 0) {
    return run(*content.call, {})[static_cast<size_t>(content.result)].toTensor().storage();
  }
  const c10::Storage memory =
      content.before != nullptr
          ? memory_of(*content.before)
          : at::empty({static_cast<int64_t>(content.bytes)}, at::kByte).storage();
  if (content.call != nullptr) run(*content.call, {content.storage, memory});
  return memory;
}

}  // namespace

std::shared_ptr<const TapeContent> tape_content(const at::Tensor& tensor) {
  const Tape* const tape = tape_of(tensor);
  return tape == nullptr ? nullptr : tape->content;
}

void set_tape_content(const at::Tensor& tensor, TapeContent content) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  content.bytes = storage->nbytes();
  Tape* tape = tape_of(tensor);
  if (tape == nullptr) {
    content.storage = next_storage_number();
    auto owned = std::make_unique<Tape>();
    tape = owned.get();
    storage->set_data_ptr_noswap(
        c10::DataPtr(nullptr, owned.release(), &delete_tape, at::Device(at::kMeta)));
  } else {
    content.storage = tape->content->storage;
  }
  tape->content = std::make_shared<const TapeContent>(std::move(content));
}

at::Tensor replay(const TapedTensor& tensor) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard real(c10::DispatchKeySet({kMetaInitKey, kChunkKey}));
  return on_memory(memory_of(*tensor.content), tensor);
}

}  // namespace elixir
