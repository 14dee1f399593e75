#pragma once

#include <cstdint>

namespace elixir {

// Whose kernels a profile on the meta device imitates: what they keep for backward, and their
// scratch memory.
enum class ProfileTarget : uint8_t { kCpu, kCuda };

}  // namespace elixir
