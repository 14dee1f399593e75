#pragma once

#include <c10/core/ScalarType.h>

#include "base/compute_type.h"

namespace elixir {

inline c10::ScalarType scalar_type(ComputeType type) {
  return type == ComputeType::kFp32   ? c10::ScalarType::Float
         : type == ComputeType::kBf16 ? c10::ScalarType::BFloat16
                                      : c10::ScalarType::Half;
}

// Chunks take values of these types and convert them to their own. Narrower floating-point values
// mean nothing without the scales beside them, so they keep their type, as integers do.
inline bool chunks_take(c10::ScalarType type) {
  return type == c10::ScalarType::Float || type == c10::ScalarType::BFloat16 ||
         type == c10::ScalarType::Half || type == c10::ScalarType::Double;
}

}  // namespace elixir
