#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace elixir {

// How a decoder-only transformer is built, whatever its family.
struct DecoderOptions {
  uint64_t seed = 1;   // the initial weights depend on it and on the configuration alone
  double dropout = 0;  // of embeddings and residuals, GPT-2's of attention, too; while training
  at::ScalarType dtype = at::kFloat;  // weights are drawn in FP32, then rounded
  // While training, each block keeps its input alone for backward: client/tensors/checkpoint.h.
  bool checkpoint_activations = false;
};

// Of weights, at the start, about 0.
inline constexpr double kInitDeviation = 0.02;

// What families share. Names of members are names of parameters: Hugging Face's.

// torch.nn.Linear: weight [out, in] and, where asked for, a bias [out].
struct LinearLayer : torch::nn::Module {
  LinearLayer(int64_t in, int64_t out, bool with_bias);
  at::Tensor forward(const at::Tensor& x);  // [..., in] to [..., out]

  at::Tensor weight, bias;  // bias: undefined without
};

struct LayerNorm : torch::nn::Module {
  explicit LayerNorm(int64_t width);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;
};

struct EmbeddingTable : torch::nn::Module {
  EmbeddingTable(int64_t count, int64_t width);
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;
};

// [batch, seq, heads * head_width] to [batch, heads, seq, head_width], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);

// Causal attention of [batch, heads, seq, head_width], joined to [batch, seq, width]. keys and
// values may have fewer heads, each for several of the queries'.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values);

// body(x), checkpointed when asked for.
at::Tensor run_block(bool checkpointed, const std::function<at::Tensor(const at::Tensor&)>& body,
                     const at::Tensor& x);

// Weights normal with deviation 0.02, biases 0, one-dimensional weights (norms) 1; each parameter
// from a generator of its own; then rounded to options.dtype, one by one.
void initialise_decoder(torch::nn::Module& model, const DecoderOptions& options);

// The mean cross entropy of targets [batch, seq] under logits [batch, seq, vocabulary], in FP32.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace elixir
