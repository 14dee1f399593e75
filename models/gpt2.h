#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "models/gpt2_config.h"

namespace elixir {

class Gpt2Transformer;

struct Gpt2Options {
  uint64_t seed = 1;   // the initial weights depend on it and on the configuration alone
  double dropout = 0;  // of embeddings, attention and residuals, while training
  at::ScalarType dtype = at::kFloat;  // weights are drawn in FP32, then rounded
  // While training, each block keeps its input alone for backward: client/tensors/checkpoint.h.
  bool checkpoint_activations = false;
};

// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel names and shapes it, the output
// projection tied to the token embedding. Initialised as GPT-2: weights normal with deviation
// 0.02, those that write to the residual stream 0.02 / sqrt(2 * layers), biases 0, norms 1.
//
// An ordinary module: every use of a weight goes through an ATen operator and no pointer into one
// is kept, so the storage under a parameter may change between operators.
class Gpt2 : public torch::nn::Module {
 public:
  Gpt2(const Gpt2Config& config, const Gpt2Options& options);
  ~Gpt2() override;

  // tokens [batch, seq] int64, seq <= config().context; logits [batch, seq, vocabulary] in the
  // dtype of the weights. Throws c10::Error on a longer sequence.
  at::Tensor forward(const at::Tensor& tokens);

  // The mean cross entropy of targets [batch, seq] int64 under forward(tokens): a scalar, computed
  // in FP32 whatever the dtype of the weights.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  const Gpt2Config& config() const { return config_; }

 private:
  void initialise(const Gpt2Options& options);

  Gpt2Config config_;
  std::shared_ptr<Gpt2Transformer> transformer_;
};

}  // namespace elixir
