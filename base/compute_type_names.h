#pragma once

#include "base/compute_type.h"
#include "base/enum_names.h"

namespace elixir {

inline constexpr EnumName<ComputeType> kComputeTypeNames[] = {
    {"bf16", ComputeType::kBf16}, {"fp16", ComputeType::kFp16}, {"fp32", ComputeType::kFp32}};
constexpr const char* compute_type_name(ComputeType type) {
  return name_in(kComputeTypeNames, type);
}

}  // namespace elixir
