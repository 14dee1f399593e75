#pragma once

#include <cstring>
#include <unordered_map>

#include "models/pickle.h"

namespace elixir::pickle {

Status broken(const char* what);

// A pickle is a program for this machine. It has a stack of values, marks in the stack, and a memo.
class Machine {
 public:
  explicit Machine(Document& document)
      : out_(document), bytes_(document.bytes_.data(), document.bytes_.size()) {}

  // Runs to STOP.
  Status run();

 private:
  Status step(uint8_t opcode);
  Status constant(uint8_t opcode, bool* known);
  Status text(uint8_t opcode, bool* known);
  Status container(uint8_t opcode, bool* known);
  Status memo(uint8_t opcode, bool* known);
  Status object(uint8_t opcode, bool* known);
  Status reduce();
  Status storage();
  Status rebuild_tensor(const Value& arguments);

  template <typename Number>
  Status read(Number* number);
  Status read_text(uint64_t length, std::string_view* text);
  Status read_line(std::string_view* text);
  Status push(Value value);
  Status push_class(std::string_view module, std::string_view name);
  Status pop(uint32_t* number);
  // Removes the last mark and the values above it, and returns these.
  Status pop_to_mark(std::vector<uint32_t>* numbers);
  Status put(uint64_t place);
  Status get(uint64_t place);
  Status extend(std::vector<uint32_t> numbers, Kind kind);
  // Reads a tuple of whole numbers. False if one is below 0 or there is something else.
  bool counts(uint32_t number, std::vector<int64_t>* found) const;

  Document& out_;
  const std::string_view bytes_;
  size_t at_ = 0;
  bool stopped_ = false;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
};

template <typename Number>
Status Machine::read(Number* number) {
  if (bytes_.size() - at_ < sizeof *number) return broken("is cut short");
  std::memcpy(number, bytes_.data() + at_, sizeof *number);
  at_ += sizeof *number;
  return Status();
}

}  // namespace elixir::pickle
