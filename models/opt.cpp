#include "models/opt.h"

#include <ATen/Functions.h>

#include "base/check.h"

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
        self_attn_layer_norm(
            register_module("self_attn_layer_norm", std::make_shared<LayerNorm>(config.width))),
        fc1(register_module("fc1",
                            std::make_shared<LinearLayer>(config.width, config.mlp_width, true))),
        fc2(register_module("fc2",
                            std::make_shared<LinearLayer>(config.mlp_width, config.width, true))),
        final_layer_norm(
            register_module("final_layer_norm", std::make_shared<LayerNorm>(config.width))) {}

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

// Gives the blocks their names, layers.0, layers.1, ...
struct OptBlocks : torch::nn::Module {
  OptBlocks(const TransformerConfig& config, double dropout) {
    for (int64_t i = 0; i < config.layers; ++i) {
      all.push_back(
          register_module(std::to_string(i), std::make_shared<OptBlock>(config, dropout)));
    }
  }

  std::vector<std::shared_ptr<OptBlock>> all;
};

struct OptStack : torch::nn::Module {
  OptStack(const TransformerConfig& config, const DecoderOptions& options)
      : options(options),
        embed_tokens(register_module(
            "embed_tokens", std::make_shared<EmbeddingTable>(config.vocabulary, config.width))),
        embed_positions(register_module(
            "embed_positions",
            std::make_shared<EmbeddingTable>(config.context + kPositionOffset, config.width))),
        final_layer_norm(
            register_module("final_layer_norm", std::make_shared<LayerNorm>(config.width))),
        layers(register_module("layers", std::make_shared<OptBlocks>(config, options.dropout))) {}

  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor positions =
        at::arange(kPositionOffset, kPositionOffset + tokens.size(1), tokens.options());
    at::Tensor x = embed_tokens->forward(tokens) + embed_positions->forward(positions);
    x = at::dropout(x, options.dropout, is_training());
    for (const std::shared_ptr<OptBlock>& block : layers->all) {
      x = run_block(
          options.checkpoint_activations && is_training(),
          [block](const at::Tensor& input) { return block->forward(input); }, x);
    }
    return final_layer_norm->forward(x);
  }

  const DecoderOptions options;
  std::shared_ptr<EmbeddingTable> embed_tokens, embed_positions;
  std::shared_ptr<LayerNorm> final_layer_norm;
  std::shared_ptr<OptBlocks> layers;
};

}  // namespace

class OptDecoder : public torch::nn::Module {
 public:
  OptDecoder(const TransformerConfig& config, const DecoderOptions& options)
      : decoder(register_module("decoder", std::make_shared<OptStack>(config, options))) {}

  const std::shared_ptr<OptStack> decoder;
};

Opt::Opt(const TransformerConfig& config, const DecoderOptions& options)
    : config_(config),
      model_(register_module("model", std::make_shared<OptDecoder>(config, options))) {
  ELIXIR_CHECK(config.family == planner::Family::kOpt && config.heads > 0 &&
                   config.width % config.heads == 0,
               "{} heads for a width of {}", config.heads, config.width);
  if (!config.tied) {
    lm_head_ = register_module(
        "lm_head", std::make_shared<LinearLayer>(config.width, config.vocabulary, false));
  }
  initialise_decoder(*this, options);
}

Opt::~Opt() = default;

at::Tensor Opt::forward(const at::Tensor& tokens) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= config_.context, "Opt ", config_.name,
              " takes tokens [batch, seq] of at most ", config_.context, " a sequence, but got ",
              tokens.sizes());
  const at::Tensor hidden = model_->decoder->forward(tokens);
  return lm_head_ ? lm_head_->forward(hidden)
                  : at::linear(hidden, model_->decoder->embed_tokens->weight);
}

at::Tensor Opt::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return next_token_loss(forward(tokens), targets);
}

}  // namespace elixir
