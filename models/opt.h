#pragma once

#include "models/decoder_parts.h"
#include "planner/models/transformer_config.h"

namespace elixir {

class OptDecoder;

// OPT (Zhang et al., arXiv 2205.01068) as Hugging Face's OPTForCausalLM names and shapes it: norms
// before attention and MLP, ReLU, learned positions counted from 2, the output projection tied to
// the token embedding. Weights are normal with deviation 0.02, biases 0.
//
// An ordinary module: every use of a weight goes through an ATen operator and no pointer into one
// is kept, so the storage under a parameter may change between operators.
class Opt : public torch::nn::Module {
 public:
  // REQUIRES: config.family is kOpt and its heads divide its width.
  Opt(const planner::TransformerConfig& config, const DecoderOptions& options);
  ~Opt() override;

  // tokens [batch, seq] int64, seq <= the configuration's context; logits [batch, seq, vocabulary]
  // in the dtype of the weights. Throws c10::Error on a longer sequence.
  at::Tensor forward(const at::Tensor& tokens);

  // The mean cross entropy of targets [batch, seq] int64 under forward(tokens): a scalar, in FP32.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

 private:
  planner::TransformerConfig config_;
  std::shared_ptr<OptDecoder> model_;
  std::shared_ptr<LinearLayer> lm_head_;  // null: the token embedding is used
};

}  // namespace elixir
