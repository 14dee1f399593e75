#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>

namespace elixir {

// The kernels that a profile on the meta device imitates: their tensors for backward and their
// scratch memory.
enum class ProfileTarget : uint8_t { kCpu, kCuda };

// The device whose tensors this thread's meta tensors imitate. Empty outside of a profile, which
// alone sets it (client/profile).
std::optional<ProfileTarget>& profile_target();

// Whether code that has a way of its own for CUDA must take it. A profile for CUDA must walk the
// way that the step will take there.
bool takes_cudas_way(const at::Tensor& tensor);

}  // namespace elixir
