#include "models/diverged.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace elixir {

std::string first_not_finite(const torch::nn::Module& model) try {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model.named_parameters()) {
    const int64_t numel = parameter.value().numel();
    const int64_t bad = numel - at::isfinite(parameter.value()).sum().item<int64_t>();
    if (bad > 0) return fmt::format("'{}', {} of {} values", parameter.key(), bad, numel);
  }
  return "";
} catch (const c10::OutOfMemoryError&) {
  return "";
}

}  // namespace elixir
