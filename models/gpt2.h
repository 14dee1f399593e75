#pragma once

#include "models/decoder_parts.h"
#include "planner/models/transformer_config.h"

namespace elixir {

class Gpt2Transformer;

// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel names and shapes it, the output
// projection tied to the token embedding. Initialised as GPT-2: weights normal with deviation
// 0.02, those that write to the residual stream 0.02 / sqrt(2 * layers), biases 0, norms 1.
//
// An ordinary module: every use of a weight goes through an ATen operator and no pointer into one
// is kept, so the storage under a parameter may change between operators.
class Gpt2 : public torch::nn::Module {
 public:
  // REQUIRES: config.family is kGpt2, its heads divide its width, and it is tied.
  Gpt2(const planner::TransformerConfig& config, const DecoderOptions& options);
  ~Gpt2() override;

  // tokens [batch, seq] int64, seq <= config().context; logits [batch, seq, vocabulary] in the
  // dtype of the weights. Throws c10::Error on a longer sequence.
  at::Tensor forward(const at::Tensor& tokens);

  // The mean cross entropy of targets [batch, seq] int64 under forward(tokens): a scalar, computed
  // in FP32 whatever the dtype of the weights.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  const planner::TransformerConfig& config() const { return config_; }

 private:
  void initialise(const DecoderOptions& options);

  planner::TransformerConfig config_;
  std::shared_ptr<Gpt2Transformer> transformer_;
};

}  // namespace elixir
