#pragma once

#include "models/decoder_parts.h"
#include "planner/models/transformer_config.h"

namespace elixir {

class LlamaDecoder;

// Llama (Touvron et al., arXiv 2302.13971) as Hugging Face's LlamaForCausalLM names and shapes it:
// RMS norms before attention and MLP, rotary positions (Su et al., arXiv 2104.09864) of base
// 10,000, SwiGLU, no biases, queries in groups that share keys and values where the configuration
// has fewer of those (Llama 2, arXiv 2307.09288). Weights are normal with deviation 0.02. Its
// papers use no dropout; the option acts on embeddings and residuals.
//
// Also its relatives, as TransformerConfig tells them apart: Mistral, Mixtral, Qwen 2 and 3, Gemma
// 2 and 3, Phi-3. For their profiles: attention is causal over the whole sequence (no sliding
// windows, no caps on its scores), positions are not rescaled, and nobody compared these relatives'
// values with their originals'.
//
// An ordinary module: every use of a weight goes through an ATen operator and no pointer into one
// is kept, so the storage under a parameter may change between operators.
class Llama : public torch::nn::Module {
 public:
  // REQUIRES: config.family is kLlama and its heads divide its width.
  Llama(const planner::TransformerConfig& config, const DecoderOptions& options);
  ~Llama() override;

  // tokens [batch, seq] int64, seq <= the configuration's context; logits [batch, seq, vocabulary]
  // in the dtype of the weights. Throws c10::Error on a longer sequence.
  at::Tensor forward(const at::Tensor& tokens);

  // The mean cross entropy of targets [batch, seq] int64 under forward(tokens): a scalar, in FP32.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

 private:
  planner::TransformerConfig config_;
  std::shared_ptr<LlamaDecoder> model_;
  std::shared_ptr<LinearLayer> lm_head_;  // null: the token embedding is used
};

}  // namespace elixir
