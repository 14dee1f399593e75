#include "models/weight_decay.h"

#include <utility>

namespace elixir {

std::vector<ParamGroup> decay_groups(const torch::nn::Module& model, const TrainOptions& options) {
  ParamGroup group{.weight_decay = 0.0};
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad() && !is_decayed(parameter)) group.parameters.push_back(parameter);
  }
  if (options.decay_all || group.parameters.empty()) return {};
  return {std::move(group)};
}

}  // namespace elixir
