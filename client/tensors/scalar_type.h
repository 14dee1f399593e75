#pragma once

#include <c10/core/ScalarType.h>

#include "base/compute_type.h"

namespace elixir {

inline c10::ScalarType scalar_type(ComputeType type) {
  return type == ComputeType::kFp32   ? c10::ScalarType::Float
         : type == ComputeType::kBf16 ? c10::ScalarType::BFloat16
                                      : c10::ScalarType::Half;
}

}  // namespace elixir
