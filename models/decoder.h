#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "planner/models/transformer_config.h"

namespace elixir {

// How a decoder-only transformer of any family is built.
struct DecoderOptions {
  uint64_t seed = 1;  // the initial weights depend only on it and on the configuration
  // For embeddings and residuals, in GPT-2 also for attention; only while training.
  double dropout = 0;
  at::ScalarType dtype = at::kFloat;  // weights are drawn in FP32, then rounded
  // While training, each block keeps only its input for backward: client/tensors/checkpoint.h.
  bool checkpoint_activations = false;
};

// A decoder-only transformer. Its parameters have Hugging Face's names and shapes.
//
// An ordinary module. Every use of a weight goes through an ATen operator, and no pointer into a
// weight is kept. So the storage of a parameter may change between operators.
class Decoder : public torch::nn::Module {
 public:
  // tokens [batch, seq] int64, seq <= config().context; logits [batch, seq, vocabulary] in the
  // dtype of the weights. Throws c10::Error on a longer sequence.
  at::Tensor forward(const at::Tensor& tokens);

  // The mean cross entropy of targets [batch, seq] int64 under forward(tokens): a scalar, computed
  // in FP32 even for 16-bit weights. If there are many logits, only a part of them exists at a
  // time: client/tensors/linear_cross_entropy.h.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  const planner::TransformerConfig& config() const { return config_; }

 protected:
  explicit Decoder(const planner::TransformerConfig& config) : config_(config) {}
  // [batch, seq, width]; multiplied with head() [vocabulary, width], it gives the logits.
  virtual at::Tensor hidden(const at::Tensor& tokens) = 0;
  virtual const at::Tensor& head() const = 0;
  // [vocabulary], added to the logits; undefined: none.
  virtual at::Tensor head_bias() const { return {}; }

  const planner::TransformerConfig config_;

 private:
  at::Tensor checked_hidden(const at::Tensor& tokens);
  std::pair<at::Tensor, at::Tensor> with_bias(const at::Tensor& hidden) const;
};

// The module of a known family with random weights. Under elixir::MetaInit it has no memory.
// kBadInput: the family cannot have such sizes, for example heads that do not divide the width, or
// a GPT-2 with an untied output projection.
Result<std::shared_ptr<Decoder>> build_decoder(const planner::TransformerConfig& config,
                                               const DecoderOptions& options);

}  // namespace elixir
