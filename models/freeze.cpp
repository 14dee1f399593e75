#include "models/freeze.h"

#include "models/name_pattern.h"

namespace elixir {

Status freeze(torch::nn::Module& module, const std::string& expression) {
  const Result<NamePattern> pattern = NamePattern::compile("--freeze", expression);
  if (!pattern.ok()) return pattern.status();
  size_t frozen = 0, all = 0;
  for (auto& named : module.named_parameters()) {
    ++all;
    if (!pattern->finds(named.key())) continue;
    named.value().set_requires_grad(false);
    ++frozen;
  }
  ELIXIR_CHECK(all > 0, "a model without parameters");
  if (frozen > 0 && frozen < all) return {};
  return error(Code::kInvalidArgument, "--freeze '{}' finds {} of {} parameters, as {}: {}",
               expression, frozen, all, module.named_parameters().front().key(),
               frozen == 0
                   ? "nothing is frozen"
                   : "nothing is left to train (elixirctl plan --adapters RANK plans adapters "
                     "on a frozen model)");
}

}  // namespace elixir
