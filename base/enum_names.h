#pragma once

// The names of an enum's values: one table for printing, parsing and command lines.
//
//   enum class Isa { kScalar, kAvx2 };
//   inline constexpr EnumName<Isa> kIsaNames[] = {{"scalar", Isa::kScalar}, ...};

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

template <typename Value>
struct EnumName {
  const char* name;
  Value value;
};

// "unknown" for a value that is not in the table, such as one that another process wrote.
template <typename Value, size_t n>
constexpr const char* name_in(const EnumName<Value> (&names)[n], Value value) {
  for (const auto& known : names) {
    if (known.value == value) return known.name;
  }
  return "unknown";
}

// "a, b or c".
template <typename Value, size_t n>
std::string list_names(const EnumName<Value> (&names)[n]) {
  std::string list;
  for (size_t i = 0; i < n; ++i) {
    list += std::string(i == 0 ? "" : i + 1 == n ? " or " : ", ") + names[i].name;
  }
  return list;
}

inline std::string unknown_name(std::string_view text, const std::string& known) {
  return fmt::format("'{}' is not known; use {}", text, known);
}

// kInvalidArgument, with the known names, for a name that is not in the table.
template <typename Value, size_t n>
Result<Value> parse_name(const EnumName<Value> (&names)[n], std::string_view text) {
  for (const auto& known : names) {
    if (text == known.name) return known.value;
  }
  return Status(Code::kInvalidArgument, unknown_name(text, list_names(names)));
}

}  // namespace elixir
