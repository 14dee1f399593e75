#pragma once

// Torch's types and their names in safetensors files.

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace elixir {

struct StoredType {
  at::ScalarType type;
  std::string_view name;
};
inline constexpr StoredType kStoredTypes[] = {
    {at::kBFloat16, "BF16"},
    {at::kHalf, "F16"},
    {at::kFloat, "F32"},
    {at::kDouble, "F64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kBool, "BOOL"},
    {at::kByte, "U8"},
    {at::kChar, "I8"},
    {at::kUInt16, "U16"},
    {at::kShort, "I16"},
    {at::kUInt32, "U32"},
    {at::kInt, "I32"},
    {at::kUInt64, "U64"},
    {at::kLong, "I64"},
};

// Empty if files have no such type.
inline std::optional<std::string_view> stored_name_of(at::ScalarType type) {
  for (const StoredType& stored : kStoredTypes) {
    if (stored.type == type) return stored.name;
  }
  return std::nullopt;
}
// Empty if torch has no such type.
inline std::optional<at::ScalarType> scalar_type_of(std::string_view name) {
  for (const StoredType& stored : kStoredTypes) {
    if (stored.name == name) return stored.type;
  }
  return std::nullopt;
}

}  // namespace elixir
