#include "client/train/module_parameters.h"

#include <ATen/core/grad_mode.h>

#include <unordered_set>

#include "client/error.h"

namespace elixir {
namespace {

void check_trainable(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided && tensor.is_floating_point() && tensor.device().is_cpu()) {
    return;
  }
  throw Error(error(Code::kInvalidArgument,
                    "parameter '{}' is {} on {} with layout {}: Elixir trains dense floating-point "
                    "parameters that are built on the CPU",
                    name, tensor.dtype().name(), tensor.device().str(),
                    tensor.layout() == at::kStrided ? "strided" : "sparse"));
}

}  // namespace

std::vector<ModuleParameter> trainable_parameters(torch::nn::Module& model) {
  std::vector<ModuleParameter> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    check_trainable(item.key(), tensor);
    result.push_back({item.key(), tensor});
  }
  return result;
}

std::vector<ParameterSize> sizes_of(const std::vector<ModuleParameter>& parameters) {
  std::vector<ParameterSize> sizes;
  for (const ModuleParameter& parameter : parameters) {
    sizes.push_back({parameter.name, static_cast<uint64_t>(parameter.tensor.numel())});
  }
  return sizes;
}

void move_the_rest(torch::nn::Module& model, at::Device device, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto move = [&](at::Tensor& tensor) {
    tensor.set_data(tensor.is_floating_point() ? tensor.to(device, dtype) : tensor.to(device));
  };
  for (at::Tensor& tensor : model.parameters()) {
    if (!tensor.requires_grad()) move(tensor);
  }
  for (at::Tensor& tensor : model.buffers()) move(tensor);
}

ComputeType compute_type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ComputeType::kFp32;
    case at::kBFloat16:
      return ComputeType::kBf16;
    case at::kHalf:
      return ComputeType::kFp16;
    default:
      throw Error(error(Code::kInvalidArgument,
                        "cannot compute in {}: use kFloat, kBFloat16 or kHalf",
                        c10::toString(dtype)));
  }
}

}  // namespace elixir
