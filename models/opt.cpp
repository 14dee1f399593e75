#include <ATen/Functions.h>

#include "models/decoder_parts.h"
#include "models/families.h"

namespace elixir {
namespace {

using planner::TransformerConfig;

constexpr int64_t kPositionOffset = 2;

struct OptAttention : torch::nn::Module {
  explicit OptAttention(const TransformerConfig& config)
      : heads(config.heads),
        k_proj(projection("k_proj", config)),
        v_proj(projection("v_proj", config)),
        q_proj(projection("q_proj", config)),
        out_proj(projection("out_proj", config)) {}

  std::shared_ptr<LinearLayer> projection(const char* name, const TransformerConfig& config) {
    return register_module(name, std::make_shared<LinearLayer>(config.width, config.width, true));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor queries = split_heads(q_proj->forward(x), heads);
    const at::Tensor keys = split_heads(k_proj->forward(x), heads);
    const at::Tensor values = split_heads(v_proj->forward(x), heads);
    return out_proj->forward(causal_attention(queries, keys, values));
  }

  const int64_t heads;
  std::shared_ptr<LinearLayer> k_proj, v_proj, q_proj, out_proj;
};

struct OptBlock : torch::nn::Module {
  OptBlock(const TransformerConfig& config, double dropout)
      : dropout(dropout),
        self_attn(register_module("self_attn", std::make_shared<OptAttention>(config))),
        self_attn_layer_norm(register_module(
            "self_attn_layer_norm", std::make_shared<LayerNorm>(config.width, config.norm_eps))),
        fc1(register_module("fc1",
                            std::make_shared<LinearLayer>(config.width, config.mlp_width, true))),
        fc2(register_module("fc2",
                            std::make_shared<LinearLayer>(config.mlp_width, config.width, true))),
        final_layer_norm(register_module(
            "final_layer_norm", std::make_shared<LayerNorm>(config.width, config.norm_eps))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + drop(self_attn->forward(self_attn_layer_norm->forward(x)));
    const at::Tensor hidden = at::relu(fc1->forward(final_layer_norm->forward(attended)));
    return attended + drop(fc2->forward(hidden));
  }

  at::Tensor drop(const at::Tensor& x) const { return at::dropout(x, dropout, is_training()); }

  const double dropout;
  std::shared_ptr<OptAttention> self_attn;
  std::shared_ptr<LayerNorm> self_attn_layer_norm;
  std::shared_ptr<LinearLayer> fc1, fc2;
  std::shared_ptr<LayerNorm> final_layer_norm;
};

struct OptStack : torch::nn::Module {
  OptStack(const TransformerConfig& config, const DecoderOptions& options)
      : options(options),
        embed_tokens(register_module(
            "embed_tokens", std::make_shared<EmbeddingTable>(config.vocabulary, config.width,
                                                             config.padding_token))),
        embed_positions(register_module(
            "embed_positions",
            std::make_shared<EmbeddingTable>(config.context + kPositionOffset, config.width))),
        final_layer_norm(register_module(
            "final_layer_norm", std::make_shared<LayerNorm>(config.width, config.norm_eps))),
        layers(register_module(
            "layers", std::make_shared<Blocks<OptBlock>>(config.layers, config, options.dropout))) {
  }

  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor positions =
        at::arange(kPositionOffset, kPositionOffset + tokens.size(1), tokens.options());
    const at::Tensor x = embed_tokens->forward(tokens) + embed_positions->forward(positions);
    return final_layer_norm->forward(layers->forward(at::dropout(x, options.dropout, is_training()),
                                                     options.checkpoint_activations));
  }

  const DecoderOptions options;
  std::shared_ptr<EmbeddingTable> embed_tokens, embed_positions;
  std::shared_ptr<LayerNorm> final_layer_norm;
  std::shared_ptr<Blocks<OptBlock>> layers;
};

// Only gives the stack its name.
struct OptModel : torch::nn::Module {
  OptModel(const TransformerConfig& config, const DecoderOptions& options)
      : decoder(register_module("decoder", std::make_shared<OptStack>(config, options))) {}

  std::shared_ptr<OptStack> decoder;
};

struct Opt : Decoder {
  Opt(const TransformerConfig& config, const DecoderOptions& options)
      : Decoder(config),
        model(register_module("model", std::make_shared<OptModel>(config, options))) {
    if (!config.tied) {
      lm_head = register_module(
          "lm_head", std::make_shared<LinearLayer>(config.width, config.vocabulary, false));
    }
    initialise_decoder(*this, options, config);
  }

  at::Tensor hidden(const at::Tensor& tokens) override { return model->decoder->forward(tokens); }
  const at::Tensor& head() const override {
    return lm_head ? lm_head->weight : model->decoder->embed_tokens->weight;
  }

  std::shared_ptr<OptModel> model;
  std::shared_ptr<LinearLayer> lm_head;  // null: the token embedding is used
};

}  // namespace

std::shared_ptr<Decoder> make_opt(const TransformerConfig& config, const DecoderOptions& options) {
  return std::make_shared<Opt>(config, options);
}

}  // namespace elixir
