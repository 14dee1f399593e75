// Every operator under MetaInit passes here, above autograd: factory functions are sent to the meta
// device, and what they and the operators on their results would have computed goes on tape.

#include "client/tensors/meta_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>

#include "base/throw_error.h"
#include "client/tensors/dispatch_key.h"
#include "client/tensors/init_tape.h"
#include "client/tensors/torch_version.h"

namespace elixir {
namespace {

using torch::jit::Stack;

// Writes the whole of its first argument without reading it.
bool overwrites(const std::string& name) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "aten::zero_",       "aten::fill_",      "aten::normal_",    "aten::uniform_",
      "aten::copy_",       "aten::random_",    "aten::bernoulli_", "aten::exponential_",
      "aten::log_normal_", "aten::geometric_", "aten::cauchy_"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool leaves_memory_alone(const std::string& name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

TapedTensor taped(const at::Tensor& tensor, std::shared_ptr<const TapeContent> content) {
  return {std::move(content), tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type()};
}

// A seed of an operator's own; the generator goes on, so that no two are equal.
uint64_t draw_seed(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

// One operator being recorded.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, const Stack& stack)
      : op_(op), first_(stack.size() - op.schema().arguments().size()) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) see(i, stack[first_ + i], arguments[i]);
  }

  // Sends what would be new memory to the meta device.
  void redirect(Stack* stack) const {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "device") continue;
      c10::IValue& device = (*stack)[first_ + i];
      const std::string& name = op_.schema().name();
      const bool conversion = name == "aten::to" || name == "aten::_to_copy";
      if (conversion && (call_.slots.empty() || device.isNone())) continue;
      device = at::Device(at::kMeta);
    }
  }

  // The operator's arguments as they are before it runs.
  void keep_arguments(const Stack& stack) {
    call_.arguments.assign(stack.begin() + static_cast<ptrdiff_t>(first_), stack.end());
    for (const TapeCall::Slot& slot : call_.slots) clear(slot);
    keep_device();
    keep_random_numbers();
  }

  // Puts the operator on the tapes of what it wrote and made.
  void finish(const Stack& stack) {
    forget_what_was_overwritten();
    const auto call = std::make_shared<const TapeCall>(std::move(call_));
    for (const Written& written : written_) {
      set_tape_content(written.tensor,
                       {.before = written.whole ? nullptr : written.before, .call = call});
    }
    const size_t results = op_.schema().returns().size();
    for (size_t i = 0; i < results; ++i) {
      const c10::IValue& value = stack[stack.size() - results + i];
      if (value.isTensor()) made(value.toTensor(), call, static_cast<int64_t>(i));
    }
  }

 private:
  void forget_what_was_overwritten() {
    for (TapeCall::Slot& slot : call_.slots) {
      const uint64_t storage = slot.tensor.content->storage;
      const bool forgotten = std::any_of(written_.begin(), written_.end(), [&](const Written& w) {
        return w.whole && w.before->storage == storage;
      });
      if (!forgotten) continue;
      slot.tensor.content = std::make_shared<const TapeContent>(
          TapeContent{.storage = storage, .bytes = slot.tensor.content->bytes});
    }
  }

  struct Written {
    at::Tensor tensor;
    std::shared_ptr<const TapeContent> before;
    bool whole = false;
  };

  void see(size_t argument, const c10::IValue& value, const c10::Argument& declared) {
    if (value.isTensor()) {
      see(argument, -1, value.toTensor(), declared);
    } else if (value.isTensorList()) {
      const auto tensors = value.toTensorVector();
      for (size_t i = 0; i < tensors.size(); ++i) {
        see(argument, static_cast<int64_t>(i), tensors[i], declared);
      }
    } else if (value.isList()) {
      const auto elements = value.toListRef();
      for (size_t i = 0; i < elements.size(); ++i) {
        if (!elements[i].isTensor()) continue;
        see(argument, static_cast<int64_t>(i), elements[i].toTensor(), declared);
      }
    }
  }

  void see(size_t argument, int64_t element, const at::Tensor& tensor,
           const c10::Argument& declared) {
    if (!tensor.defined()) return;
    auto content = tape_content(tensor);
    if (content == nullptr) {
      if (!tensor.is_meta()) call_.real.push_back({tensor, tensor._version()});
      return;
    }
    if (declared.alias_info() != nullptr && declared.alias_info()->isWrite()) {
      written_.push_back({tensor, content, overwrites_all_of(tensor, argument)});
    } else {  // read from what is being overwritten: then it matters
      for (Written& written : written_) {
        written.whole = written.whole && written.before->storage != content->storage;
      }
    }
    call_.slots.push_back({argument, element, taped(tensor, std::move(content))});
  }

  bool overwrites_all_of(const at::Tensor& tensor, size_t argument) const {
    return argument == 0 && overwrites(op_.schema().name()) &&
           tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
  }

  void clear(const TapeCall::Slot& slot) {
    c10::IValue& value = call_.arguments[slot.argument];
    if (slot.element < 0) {
      value = c10::IValue();
    } else if (value.isTensorList()) {
      if (slot.element == 0 || cleared_list_ != slot.argument) value = value.toTensorList().copy();
      cleared_list_ = slot.argument;
      value.toTensorList().set(static_cast<size_t>(slot.element), at::Tensor());
    } else {
      if (cleared_list_ != slot.argument) value = value.toList().copy();
      cleared_list_ = slot.argument;
      value.toList().set(static_cast<size_t>(slot.element), c10::IValue());
    }
  }

  void keep_device() {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "device" || call_.arguments[i].isNone()) continue;
      call_.arguments[i] = at::Device(at::kCPU);
    }
  }

  void keep_random_numbers() {
    call_.random = op_.hasTag(at::Tag::nondeterministic_seeded);
    if (!call_.random) return;
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "generator" || !call_.arguments[i].isGenerator()) continue;
      at::Generator given = call_.arguments[i].toGenerator();
      TORCH_CHECK(given.device().is_cpu(), "under MetaInit, ", op_.schema().name(),
                  " takes a generator of the CPU, where values are computed");
      call_.arguments[i] = given.clone();
      given.set_current_seed(draw_seed(given));
      return;
    }
    call_.seed = draw_seed(at::globalContext().defaultGenerator(at::kCPU));
  }

  void made(const at::Tensor& tensor, const std::shared_ptr<const TapeCall>& call,
            int64_t result) const {
    if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return;
    if (tape_content(tensor) != nullptr) return;  // a view, or what was written
    const bool empty = leaves_memory_alone(op_.schema().name());
    set_tape_content(tensor, {.call = empty ? nullptr : call, .result = empty ? -1 : result});
  }

  const c10::OperatorHandle& op_;
  const size_t first_;
  TapeCall call_{.op = op_};
  std::vector<Written> written_;
  size_t cleared_list_ = SIZE_MAX;
};

void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  Recording recording(op, *stack);
  const c10::impl::ExcludeDispatchKeyGuard within(kMetaInitKey);  // part of this operator
  recording.keep_arguments(*stack);
  recording.redirect(stack);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMetaInitKey),
                     stack);
  recording.finish(*stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&record>());
}

MetaInit::MetaInit() : every_operator_(kMetaInitKey) { require_torch_of_build(); }

bool remembers_its_values(const at::Tensor& tensor) { return tape_content(tensor) != nullptr; }

at::Tensor materialise(const at::Tensor& meta, at::Device device) {
  if (!meta.is_meta()) return meta.detach().to(device);
  const auto content = tape_content(meta);
  if (content == nullptr) {
    throw Error(error(Code::kInvalidArgument,
                      "a tensor {} on the meta device has no values to take: it was not made under "
                      "elixir::MetaInit; build the module under that guard, or on the CPU",
                      c10::str(meta.sizes())));
  }
  return replay(taped(meta, content)).to(device);
}

}  // namespace elixir
