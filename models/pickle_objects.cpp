// Classes in a pickle, and the few of which something is made: torch's tensors, dicts.

#include "models/pickle_machine.h"

namespace elixir::pickle {

Status Machine::push_class(std::string_view module, std::string_view name) {
  if (module.size() + name.size() > kMaxClassBytes) return broken("has a class without a name");
  out_.texts_.push_back(std::string(module) + "." + std::string(name));
  return push({.kind = Kind::kClass, .text = out_.texts_.back()});
}

Status Machine::object(uint8_t opcode, bool* known) {
  std::string_view module, name;
  uint32_t first = 0, second = 0;
  switch (opcode) {
    case 'c':
      ELIXIR_RETURN_IF_ERROR(read_line(&module));
      ELIXIR_RETURN_IF_ERROR(read_line(&name));
      return push_class(module, name);
    case 0x93:
      ELIXIR_RETURN_IF_ERROR(pop(&second));
      ELIXIR_RETURN_IF_ERROR(pop(&first));
      return push_class(out_.values_[first].text, out_.values_[second].text);
    case 'R':
    case 0x81:
      return reduce();
    case 'b':  // a state that the object below would take: an OrderedDict's attributes
      return pop(&first);
    case 'Q':
      return storage();
    default:
      *known = false;
      return Status();
  }
}

bool Machine::counts(uint32_t number, std::vector<int64_t>* found) const {
  const Value& tuple = out_.values_[number];
  if (tuple.kind != Kind::kTuple || tuple.items.size() > kMaxDimensions) return false;
  for (const uint32_t item : tuple.items) {
    const Value& value = out_.values_[item];
    if (value.kind != Kind::kInt || value.integer < 0) return false;
    found->push_back(value.integer);
  }
  return true;
}

// ('storage', torch.FloatStorage, key, device, elements)
Status Machine::storage() {
  uint32_t number = 0;
  ELIXIR_RETURN_IF_ERROR(pop(&number));
  const std::vector<uint32_t>& items = out_.values_[number].items;
  const auto item = [&](size_t i) -> const Value& { return out_.values_[items[i]]; };
  constexpr std::string_view kTorch = "torch.", kStorage = "Storage";
  if (out_.values_[number].kind != Kind::kTuple || items.size() != 5 || item(0).text != "storage" ||
      item(1).kind != Kind::kClass || !item(1).text.starts_with(kTorch) ||
      !item(1).text.ends_with(kStorage) || item(1).text.size() < kTorch.size() + kStorage.size() ||
      item(2).kind != Kind::kString || item(4).kind != Kind::kInt || item(4).integer < 0) {
    return broken("has a storage that is not one of torch's");
  }
  std::string_view type = item(1).text.substr(kTorch.size());
  type.remove_suffix(kStorage.size());
  out_.tensors_.push_back(
      {.type = type, .key = item(2).text, .storage_numel = static_cast<uint64_t>(item(4).integer)});
  return push({.kind = Kind::kStorage, .tensor = static_cast<uint32_t>(out_.tensors_.size() - 1)});
}

// (storage, offset, sizes, strides, ...)
Status Machine::rebuild_tensor(const Value& arguments) {
  const std::vector<uint32_t>& items = arguments.items;
  if (items.size() < 4 || out_.values_[items[0]].kind != Kind::kStorage ||
      out_.values_[items[1]].kind != Kind::kInt || out_.values_[items[1]].integer < 0) {
    return broken("has a tensor without a storage");
  }
  Tensor tensor = out_.tensors_[out_.values_[items[0]].tensor];
  tensor.offset = static_cast<uint64_t>(out_.values_[items[1]].integer);
  if (!counts(items[2], &tensor.sizes) || !counts(items[3], &tensor.strides) ||
      tensor.sizes.size() != tensor.strides.size()) {
    return broken("has a tensor without a valid shape");
  }
  uint64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    uint64_t step = 0;
    if (tensor.sizes[i] == 0) continue;
    if (__builtin_mul_overflow(static_cast<uint64_t>(tensor.sizes[i] - 1),
                               static_cast<uint64_t>(tensor.strides[i]), &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return broken("has a tensor that leaves its storage");
    }
  }
  bool empty = false;
  for (const int64_t size : tensor.sizes) empty = empty || size == 0;
  if (!empty && last >= tensor.storage_numel) return broken("has a tensor that leaves its storage");
  out_.tensors_.push_back(std::move(tensor));
  return push({.kind = Kind::kTensor, .tensor = static_cast<uint32_t>(out_.tensors_.size() - 1)});
}

Status Machine::reduce() {
  uint32_t arguments = 0, callable = 0;
  ELIXIR_RETURN_IF_ERROR(pop(&arguments));
  ELIXIR_RETURN_IF_ERROR(pop(&callable));
  if (out_.values_[arguments].kind != Kind::kTuple) return broken("calls without arguments");
  const std::string_view name = out_.values_[callable].text;
  if (out_.values_[callable].kind == Kind::kClass) {
    if (name == "torch._utils._rebuild_tensor_v2") return rebuild_tensor(out_.values_[arguments]);
    const std::vector<uint32_t>& items = out_.values_[arguments].items;
    if (name == "torch._utils._rebuild_parameter" && !items.empty()) {
      stack_.push_back(items[0]);
      return Status();
    }
    if (name == "collections.defaultdict" || (name == "collections.OrderedDict" && items.empty())) {
      return push({.kind = Kind::kDict});
    }
  }
  return push({.kind = Kind::kOpaque, .text = name});
}

}  // namespace elixir::pickle
