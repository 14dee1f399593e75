#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "planner/models/transformer_config.h"

namespace elixir {

// How a decoder-only transformer is built, whatever its family.
struct DecoderOptions {
  uint64_t seed = 1;   // the initial weights depend on it and on the configuration alone
  double dropout = 0;  // of embeddings and residuals, GPT-2's of attention, too; while training
  at::ScalarType dtype = at::kFloat;  // weights are drawn in FP32, then rounded
  // While training, each block keeps its input alone for backward: client/tensors/checkpoint.h.
  bool checkpoint_activations = false;
};

// A decoder-only transformer whose parameters are named and shaped as Hugging Face's.
//
// An ordinary module: every use of a weight goes through an ATen operator and no pointer into one
// is kept, so the storage under a parameter may change between operators.
class Decoder : public torch::nn::Module {
 public:
  // tokens [batch, seq] int64, seq <= config().context; logits [batch, seq, vocabulary] in the
  // dtype of the weights. Throws c10::Error on a longer sequence.
  at::Tensor forward(const at::Tensor& tokens);

  // The mean cross entropy of targets [batch, seq] int64 under forward(tokens): a scalar, computed
  // in FP32 for weights of 16 bits, too. Many logits exist a part at a time:
  // client/tensors/linear_cross_entropy.h.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  const planner::TransformerConfig& config() const { return config_; }

 protected:
  explicit Decoder(const planner::TransformerConfig& config) : config_(config) {}
  // [batch, seq, width], of which head() [vocabulary, width] makes logits.
  virtual at::Tensor hidden(const at::Tensor& tokens) = 0;
  virtual const at::Tensor& head() const = 0;

  const planner::TransformerConfig config_;

 private:
  at::Tensor checked_hidden(const at::Tensor& tokens);
};

// The module of a known family, with random weights; under elixir::MetaInit, without memory.
// kBadInput for sizes that the family cannot have: heads that do not divide the width, a GPT-2
// whose output projection is a weight of its own.
Result<std::shared_ptr<Decoder>> build_decoder(const planner::TransformerConfig& config,
                                               const DecoderOptions& options);

}  // namespace elixir
