#include "client/tensors/profile_target.h"

namespace elixir {

std::optional<ProfileTarget>& profile_target() {
  static thread_local std::optional<ProfileTarget> target;
  return target;
}

bool takes_cudas_way(const at::Tensor& tensor) {
  return tensor.is_cuda() || (tensor.is_meta() && profile_target() == ProfileTarget::kCuda);
}

}  // namespace elixir
