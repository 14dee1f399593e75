#include "client/tensors/model_tensors.h"

namespace elixir {

ModelTensors tensors_of(const torch::nn::Module& model) {
  ModelTensors tensors;
  for (const auto& item : model.named_parameters()) {
    if (item.value().defined()) tensors.parameters.push_back({item.key(), item.value()});
  }
  for (const auto& item : model.named_buffers()) {
    if (item.value().defined()) tensors.buffers.push_back({item.key(), item.value()});
  }
  return tensors;
}

}  // namespace elixir
