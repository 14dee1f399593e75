#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder.h"

namespace elixir {

// Parts that families share. The names of members are those of Hugging Face's parameters.

// torch.nn.Linear: weight [out, in] and, if with_bias, a bias [out].
struct LinearLayer : torch::nn::Module {
  LinearLayer(int64_t in, int64_t out, bool with_bias);
  at::Tensor forward(const at::Tensor& x);  // [..., in] to [..., out]

  at::Tensor weight, bias;  // bias: undefined without with_bias
};

struct LayerNorm : torch::nn::Module {
  LayerNorm(int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x);

  const double eps;
  at::Tensor weight, bias;
};

struct EmbeddingTable : torch::nn::Module {
  // `padding`: the index whose row gets no gradient; -1: none.
  EmbeddingTable(int64_t count, int64_t width, int64_t padding = -1);
  at::Tensor forward(const at::Tensor& indices);

  const int64_t padding;
  at::Tensor weight;
};

// [batch, seq, heads * head_width] to [batch, heads, seq, head_width], a view.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);

struct AttentionScores {
  double scale = 0;      // multiplies queries . keys; 0: 1 / sqrt(head_width)
  at::Tensor mask = {};  // [seq, seq], added to scores; undefined: -inf for later tokens
  double softcap = 0;  // not 0: softcap tanh(score / softcap) before `mask`, which must be defined
};

// Causal attention of [batch, heads, seq, head_width], joined to [batch, seq, width]. Keys and
// values may have fewer heads than queries; each then serves several of the queries' heads.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const AttentionScores& scores = {});

// body(x), with activation checkpointing if `checkpointed`.
at::Tensor run_block(bool checkpointed, const std::function<at::Tensor(const at::Tensor&)>& body,
                     const at::Tensor& x);

// A stack of blocks with the names 0, 1, ..., each constructed from `arguments`.
template <typename Block>
struct Blocks : torch::nn::Module {
  template <typename... Arguments>
  Blocks(int64_t count, const Arguments&... arguments) {
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(register_module(std::to_string(i), std::make_shared<Block>(arguments...)));
    }
  }

  // Runs the blocks one after the other, each with `beside`.
  template <typename... Beside>
  at::Tensor forward(at::Tensor x, bool checkpointed, const Beside&... beside) {
    for (const std::shared_ptr<Block>& block : all) {
      x = run_block(
          checkpointed && is_training(),
          [block, beside...](const at::Tensor& input) { return block->forward(input, beside...); },
          x);
    }
    return x;
  }

  std::vector<std::shared_ptr<Block>> all;
};

// Draws the initial values: weights normal with config.init_deviation, biases 0, one-dimensional
// weights (norms) 1, or 0 if the norm adds 1 to them. Each parameter has its own generator. Then
// rounds the parameters to options.dtype, one by one.
void initialise_decoder(torch::nn::Module& model, const DecoderOptions& options,
                        const planner::TransformerConfig& config);

}  // namespace elixir
