#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>

#include "base/status.h"
#include "models/decoder_parts.h"
#include "planner/models/transformer_config.h"

namespace elixir {

struct BuiltModel {
  std::shared_ptr<torch::nn::Module> module;
  // The mean cross entropy of targets [batch, seq] int64 given tokens [batch, seq]: a scalar.
  std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& targets)> loss;
};

// The module of a known family, with random weights; under elixir::MetaInit, without memory.
// kBadInput for sizes that the family cannot have: heads that do not divide the width, a GPT-2
// whose output projection is a weight of its own.
Result<BuiltModel> build_model(const planner::TransformerConfig& config,
                               const DecoderOptions& options);

}  // namespace elixir
