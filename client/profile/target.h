#pragma once

#include <cstdint>

namespace elixir {

// The kernels that a profile on the meta device imitates: their tensors for backward and their
// scratch memory.
enum class ProfileTarget : uint8_t { kCpu, kCuda };

}  // namespace elixir
