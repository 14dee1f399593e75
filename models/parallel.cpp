#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "models/decoder_parts.h"
#include "models/families.h"
#include "models/rotation.h"

namespace elixir {
namespace {

using planner::Family;
using planner::TransformerConfig;

struct Heads {
  at::Tensor queries, keys, values;  // [batch, heads, seq, head_width]
};

// GPT-NeoX has one projection, with queries, keys and values of a head side by side; Phi has three.
struct ParallelAttention : torch::nn::Module {
  explicit ParallelAttention(const TransformerConfig& config)
      : heads(config.heads), kv_heads(config.kv_heads), head_width(config.head_numel()) {
    const int64_t width = config.width, kv_width = kv_heads * head_width;
    const auto linear = [&](const char* name, int64_t out) {
      return register_module(name, std::make_shared<LinearLayer>(width, out, config.qkv_bias));
    };
    if (config.family == Family::kNeoX) {
      projections = {linear("query_key_value", 3 * width)};
    } else {
      projections = {linear("q_proj", width), linear("k_proj", kv_width),
                     linear("v_proj", kv_width)};
    }
    dense = linear("dense", width);
  }

  Heads project(const at::Tensor& x) {
    if (projections.size() > 1) {
      return {split_heads(projections[0]->forward(x), heads),
              split_heads(projections[1]->forward(x), kv_heads),
              split_heads(projections[2]->forward(x), kv_heads)};
    }
    const at::Tensor all = split_heads(projections[0]->forward(x), heads);
    return {all.narrow(3, 0, head_width), all.narrow(3, head_width, head_width),
            all.narrow(3, 2 * head_width, head_width)};
  }

  at::Tensor forward(const at::Tensor& x, const Rotation& rotation) {
    const Heads own = project(x);
    return dense->forward(
        causal_attention(rotation.turn(own.queries), rotation.turn(own.keys), own.values));
  }

  const int64_t heads, kv_heads, head_width;
  std::vector<std::shared_ptr<LinearLayer>> projections;
  std::shared_ptr<LinearLayer> dense;
};

struct ParallelMlp : torch::nn::Module {
  explicit ParallelMlp(const TransformerConfig& config) : exact(config.exact_gelu) {
    const bool neox = config.family == Family::kNeoX;
    const int64_t width = config.width, inner = config.mlp_width;
    up = register_module(neox ? "dense_h_to_4h" : "fc1",
                         std::make_shared<LinearLayer>(width, inner, true));
    down = register_module(neox ? "dense_4h_to_h" : "fc2",
                           std::make_shared<LinearLayer>(inner, width, true));
  }
  at::Tensor forward(const at::Tensor& x) {
    return down->forward(at::gelu(up->forward(x), exact ? "none" : "tanh"));
  }

  const bool exact;
  std::shared_ptr<LinearLayer> up, down;
};

struct ParallelBlock : torch::nn::Module {
  ParallelBlock(const TransformerConfig& config, double dropout)
      : dropout(dropout), parallel(config.parallel) {
    const auto norm = [&](const char* name) {
      return register_module(name, std::make_shared<LayerNorm>(config.width, config.norm_eps));
    };
    const bool neox = config.family == Family::kNeoX;
    if (neox) norms = {norm("input_layernorm"), norm("post_attention_layernorm")};
    attention = register_module(neox ? "attention" : "self_attn",
                                std::make_shared<ParallelAttention>(config));
    mlp = register_module("mlp", std::make_shared<ParallelMlp>(config));
    if (!neox) norms = {norm("input_layernorm")};
  }

  at::Tensor forward(const at::Tensor& x, const Rotation& rotation) {
    const at::Tensor normed = norms[0]->forward(x);
    const at::Tensor attended = x + drop(attention->forward(normed, rotation));
    if (norms.size() == 1) return attended + drop(mlp->forward(normed));
    return attended + drop(mlp->forward(norms[1]->forward(parallel ? x : attended)));
  }

  at::Tensor drop(const at::Tensor& x) const { return at::dropout(x, dropout, is_training()); }

  const double dropout;
  const bool parallel;
  std::vector<std::shared_ptr<LayerNorm>> norms;  // GPT-NeoX's MLP has one of its own
  std::shared_ptr<ParallelAttention> attention;
  std::shared_ptr<ParallelMlp> mlp;
};

struct ParallelStack : torch::nn::Module {
  ParallelStack(const TransformerConfig& config, const DecoderOptions& options)
      : dropout(options.dropout),
        checkpointed(options.checkpoint_activations),
        rotary(config.rotary),
        rotated(config.rotated_numel()) {
    const bool neox = config.family == Family::kNeoX;
    embed = register_module(
        neox ? "embed_in" : "embed_tokens",
        std::make_shared<EmbeddingTable>(config.vocabulary, config.width, config.padding_token));
    blocks = register_module(
        "layers", std::make_shared<Blocks<ParallelBlock>>(config.layers, config, dropout));
    norm = register_module(neox ? "final_layer_norm" : "final_layernorm",
                           std::make_shared<LayerNorm>(config.width, config.norm_eps));
  }

  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor x = embed->forward(tokens);
    const Rotation rotation(rotary, x.size(1), rotated, x.options());
    return norm->forward(
        blocks->forward(at::dropout(x, dropout, is_training()), checkpointed, rotation));
  }

  const double dropout;
  const bool checkpointed;
  const planner::Rotary rotary;
  const int64_t rotated;
  std::shared_ptr<EmbeddingTable> embed;
  std::shared_ptr<Blocks<ParallelBlock>> blocks;
  std::shared_ptr<LayerNorm> norm;
};

struct ParallelDecoder : Decoder {
  ParallelDecoder(const TransformerConfig& config, const DecoderOptions& options)
      : Decoder(config) {
    const bool neox = config.family == Family::kNeoX;
    model = register_module(neox ? "gpt_neox" : "model",
                            std::make_shared<ParallelStack>(config, options));
    if (neox && !config.tied) {
      embed_out = register_module(
          "embed_out", std::make_shared<LinearLayer>(config.width, config.vocabulary, false));
    }
    if (!neox) {
      lm_head = register_module("lm_head", std::make_shared<torch::nn::Module>());
      if (!config.tied) {
        weight =
            lm_head->register_parameter("weight", torch::empty({config.vocabulary, config.width}));
      }
      bias = lm_head->register_parameter("bias", torch::empty({config.vocabulary}));
    }
    initialise_decoder(*this, options, config);
  }

  at::Tensor hidden(const at::Tensor& tokens) override { return model->forward(tokens); }
  const at::Tensor& head() const override {
    if (embed_out) return embed_out->weight;
    return weight.defined() ? weight : model->embed->weight;
  }
  at::Tensor head_bias() const override { return bias; }

  std::shared_ptr<ParallelStack> model;
  std::shared_ptr<LinearLayer> embed_out;      // GPT-NeoX's, untied
  std::shared_ptr<torch::nn::Module> lm_head;  // Phi's: has a bias, tied or not
  at::Tensor weight, bias;
};

}  // namespace

std::shared_ptr<Decoder> make_parallel(const TransformerConfig& config,
                                       const DecoderOptions& options) {
  return std::make_shared<ParallelDecoder>(config, options);
}

}  // namespace elixir
