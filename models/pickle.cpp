#include "models/pickle.h"

#include <bit>

#include "models/pickle_machine.h"

namespace elixir::pickle {

Status broken(const char* what) { return error(Code::kBadInput, "its pickle {}", what); }

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {"None",    "a bool",    "an int",   "a float",
                                           "a text",  "a tuple",   "a list",   "a dict",
                                           "a class", "a storage", "a tensor", "an object"};
  return kNames[static_cast<size_t>(kind)];
}

const Value* Document::find(const Value& dict, std::string_view key) const {
  if (dict.kind != Kind::kDict) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {  // what was set last counts
    const Value& name = values_[dict.items[i - 2]];
    if (name.kind == Kind::kString && name.text == key) return &values_[dict.items[i - 1]];
  }
  return nullptr;
}

Status Machine::read_text(uint64_t length, std::string_view* text) {
  if (bytes_.size() - at_ < length) return broken("is cut short");
  *text = bytes_.substr(at_, length);
  at_ += length;
  return Status();
}

Status Machine::read_line(std::string_view* text) {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) return broken("is cut short");
  *text = bytes_.substr(at_, end - at_);
  at_ = end + 1;
  return Status();
}

Status Machine::push(Value value) {
  if (out_.values_.size() >= kMaxValues) return broken("has too many values");
  stack_.push_back(static_cast<uint32_t>(out_.values_.size()));
  out_.values_.push_back(std::move(value));
  return Status();
}

Status Machine::pop(uint32_t* number) {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
    return broken("takes a value from an empty stack");
  *number = stack_.back();
  stack_.pop_back();
  return Status();
}

Status Machine::pop_to_mark(std::vector<uint32_t>* numbers) {
  if (marks_.empty()) return broken("has no mark");
  numbers->assign(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return Status();
}

Status Machine::put(uint64_t place) {
  if (stack_.empty()) return broken("takes a value from an empty stack");
  memo_[place] = stack_.back();
  return Status();
}

Status Machine::get(uint64_t place) {
  const auto found = memo_.find(place);
  if (found == memo_.end()) return broken("takes a value from an empty stack");
  stack_.push_back(found->second);
  return Status();
}

// Items go into the container below them.
Status Machine::extend(std::vector<uint32_t> numbers, Kind kind) {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
    return broken("takes a value from an empty stack");
  Value& container = out_.values_[stack_.back()];
  if (container.kind == Kind::kOpaque) return Status();  // nobody looks into it
  if (container.kind != kind) return broken("fills a value that is not a container");
  if (kind == Kind::kDict && numbers.size() % 2 != 0) return broken("has a key without a value");
  container.items.insert(container.items.end(), numbers.begin(), numbers.end());
  return Status();
}

Status Machine::constant(uint8_t opcode, bool* known) {
  switch (opcode) {
    case 'N':
      return push({});
    case 0x88:
    case 0x89:
      return push({.kind = Kind::kBool, .integer = opcode == 0x88});
    case 'J': {
      int32_t number = 0;
      ELIXIR_RETURN_IF_ERROR(read(&number));
      return push({.kind = Kind::kInt, .integer = number});
    }
    case 'K': {
      uint8_t number = 0;
      ELIXIR_RETURN_IF_ERROR(read(&number));
      return push({.kind = Kind::kInt, .integer = number});
    }
    case 'M': {
      uint16_t number = 0;
      ELIXIR_RETURN_IF_ERROR(read(&number));
      return push({.kind = Kind::kInt, .integer = number});
    }
    case 0x8a: {  // two's complement of any length
      uint8_t length = 0;
      std::string_view digits;
      ELIXIR_RETURN_IF_ERROR(read(&length));
      ELIXIR_RETURN_IF_ERROR(read_text(length, &digits));
      if (length > 8) return push({.kind = Kind::kOpaque, .text = "int"});
      uint64_t number = length > 0 && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
      for (size_t i = digits.size(); i-- > 0;)
        number = number << 8 | static_cast<uint8_t>(digits[i]);
      return push({.kind = Kind::kInt, .integer = static_cast<int64_t>(number)});
    }
    case 'G': {  // big endian
      uint64_t bits = 0;
      ELIXIR_RETURN_IF_ERROR(read(&bits));
      return push({.kind = Kind::kFloat, .number = std::bit_cast<double>(__builtin_bswap64(bits))});
    }
    default:
      *known = false;
      return Status();
  }
}

Status Machine::text(uint8_t opcode, bool* known) {
  uint64_t length = 0;
  if (opcode == 0x8c || opcode == 'U') {
    uint8_t byte = 0;
    ELIXIR_RETURN_IF_ERROR(read(&byte));
    length = byte;
  } else if (opcode == 'X' || opcode == 'T') {
    uint32_t word = 0;
    ELIXIR_RETURN_IF_ERROR(read(&word));
    length = word;
  } else if (opcode == 0x8d) {
    ELIXIR_RETURN_IF_ERROR(read(&length));
  } else {
    *known = false;
    return Status();
  }
  std::string_view found;
  ELIXIR_RETURN_IF_ERROR(read_text(length, &found));
  return push({.kind = Kind::kString, .text = found});
}

Status Machine::container(uint8_t opcode, bool* known) {
  std::vector<uint32_t> items;
  switch (opcode) {
    case '}':
      return push({.kind = Kind::kDict});
    case ']':
      return push({.kind = Kind::kList});
    case ')':
      return push({.kind = Kind::kTuple});
    case '(':
      marks_.push_back(stack_.size());
      return Status();
    case 't':
    case 'l':
    case 'd':
      ELIXIR_RETURN_IF_ERROR(pop_to_mark(&items));
      if (opcode == 'd' && items.size() % 2 != 0) return broken("has a key without a value");
      return push({.kind = opcode == 't'   ? Kind::kTuple
                           : opcode == 'l' ? Kind::kList
                                           : Kind::kDict,
                   .items = std::move(items)});
    case 0x85:
    case 0x86:
    case 0x87:
      items.resize(opcode - 0x84u);
      for (size_t i = items.size(); i-- > 0;) ELIXIR_RETURN_IF_ERROR(pop(&items[i]));
      return push({.kind = Kind::kTuple, .items = std::move(items)});
    case 'a':
      items.resize(1);
      ELIXIR_RETURN_IF_ERROR(pop(&items[0]));
      return extend(std::move(items), Kind::kList);
    case 's':
      items.resize(2);
      ELIXIR_RETURN_IF_ERROR(pop(&items[1]));
      ELIXIR_RETURN_IF_ERROR(pop(&items[0]));
      return extend(std::move(items), Kind::kDict);
    case 'e':
    case 'u':
      ELIXIR_RETURN_IF_ERROR(pop_to_mark(&items));
      return extend(std::move(items), opcode == 'e' ? Kind::kList : Kind::kDict);
    case '1':
      return pop_to_mark(&items);
    case '0':
      items.resize(1);
      return pop(&items[0]);
    default:
      *known = false;
      return Status();
  }
}

Status Machine::memo(uint8_t opcode, bool* known) {
  uint8_t byte = 0;
  uint32_t word = 0;
  switch (opcode) {
    case 'q':
      ELIXIR_RETURN_IF_ERROR(read(&byte));
      return put(byte);
    case 'r':
      ELIXIR_RETURN_IF_ERROR(read(&word));
      return put(word);
    case 0x94:
      return put(memo_.size());
    case 'h':
      ELIXIR_RETURN_IF_ERROR(read(&byte));
      return get(byte);
    case 'j':
      ELIXIR_RETURN_IF_ERROR(read(&word));
      return get(word);
    default:
      *known = false;
      return Status();
  }
}

Status Machine::step(uint8_t opcode) {
  uint8_t version = 0;
  uint64_t frame = 0;
  switch (opcode) {
    case 0x80:
      ELIXIR_RETURN_IF_ERROR(read(&version));
      return version <= 5 ? Status() : broken("is of a later protocol than 5");
    case 0x95:
      return read(&frame);  // its length helps readers of streams
    case '.':
      stopped_ = true;
      return Status();
    default:
      break;
  }
  using Handler = Status (Machine::*)(uint8_t, bool*);
  static constexpr Handler kHandlers[] = {&Machine::memo, &Machine::text, &Machine::container,
                                          &Machine::constant, &Machine::object};
  for (const Handler handler : kHandlers) {
    bool known = true;
    ELIXIR_RETURN_IF_ERROR((this->*handler)(opcode, &known));
    if (known) return Status();
  }
  return error(Code::kBadInput, "its pickle has an opcode that tensors' files do not: {:#04x}",
               opcode);
}

Status Machine::run() {
  while (!stopped_) {
    uint8_t opcode = 0;
    ELIXIR_RETURN_IF_ERROR(read(&opcode));
    ELIXIR_RETURN_IF_ERROR(step(opcode));
  }
  marks_.clear();
  return pop(&out_.root_);
}

Result<Document> Document::parse(std::vector<char> bytes) {
  if (bytes.size() > kMaxBytes) {
    return error(Code::kBadInput, "its pickle has {} bytes, and {} are the most that is read",
                 bytes.size(), kMaxBytes);
  }
  Document document;
  document.bytes_ = std::move(bytes);
  ELIXIR_RETURN_IF_ERROR(Machine(document).run());
  return document;
}

}  // namespace elixir::pickle
