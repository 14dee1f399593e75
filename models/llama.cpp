#include "models/llama.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/variable.h>

#include "base/check.h"

namespace elixir {
namespace {

using planner::TransformerConfig;

constexpr double kRmsNormEps = 1e-5;
constexpr double kRotaryBase = 10000;

// Zhang and Sennrich, arXiv 1910.07467.
struct RmsNorm : torch::nn::Module {
  explicit RmsNorm(int64_t width) : weight(register_parameter("weight", torch::empty({width}))) {}

  at::Tensor forward(const at::Tensor& x) {
    return at::rms_norm(x, weight.sizes(), weight, kRmsNormEps);
  }

  at::Tensor weight;
};

// Cosines and sines of the angles position * base^(-2 i / head_width), [seq, head_width], each
// angle twice: for a pair (i, i + head_width / 2).
struct Rotation {
  Rotation(int64_t seq, int64_t head_width, const at::TensorOptions& options) {
    const at::TensorOptions fp32 = options.dtype(at::kFloat);
    const at::Tensor exponents = at::arange(0, head_width, 2, fp32) / head_width;
    const at::Tensor angles =
        at::outer(at::arange(seq, fp32), at::pow(kRotaryBase, exponents).reciprocal());
    const at::Tensor pairs = at::cat({angles, angles}, 1);
    cosines = pairs.cos().to(options.dtype());
    sines = pairs.sin().to(options.dtype());
  }

  // x [batch, heads, seq, head_width]; Hugging Face's order of pairs.
  at::Tensor turn(const at::Tensor& x) const {
    const int64_t half = x.size(3) / 2;
    const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
    return x * cosines + turned * sines;
  }

  at::Tensor cosines, sines;
};

struct LlamaAttention : torch::nn::Module {
  explicit LlamaAttention(const TransformerConfig& config)
      : heads(config.heads), kv_heads(config.kv_heads) {
    const int64_t width = config.width, kv_width = width / heads * kv_heads;
    q_proj = register_module("q_proj", std::make_shared<LinearLayer>(width, width, false));
    k_proj = register_module("k_proj", std::make_shared<LinearLayer>(width, kv_width, false));
    v_proj = register_module("v_proj", std::make_shared<LinearLayer>(width, kv_width, false));
    o_proj = register_module("o_proj", std::make_shared<LinearLayer>(width, width, false));
  }

  at::Tensor forward(const at::Tensor& x, const Rotation& rotation) {
    const at::Tensor queries = rotation.turn(split_heads(q_proj->forward(x), heads));
    const at::Tensor keys = rotation.turn(split_heads(k_proj->forward(x), kv_heads));
    const at::Tensor values = split_heads(v_proj->forward(x), kv_heads);
    return o_proj->forward(causal_attention(queries, keys, values));
  }

  const int64_t heads, kv_heads;
  std::shared_ptr<LinearLayer> q_proj, k_proj, v_proj, o_proj;
};

// SwiGLU (Shazeer, arXiv 2002.05202).
struct LlamaMlp : torch::nn::Module {
  explicit LlamaMlp(const TransformerConfig& config) {
    const int64_t width = config.width, inner = config.mlp_width;
    gate_proj = register_module("gate_proj", std::make_shared<LinearLayer>(width, inner, false));
    up_proj = register_module("up_proj", std::make_shared<LinearLayer>(width, inner, false));
    down_proj = register_module("down_proj", std::make_shared<LinearLayer>(inner, width, false));
  }

  at::Tensor forward(const at::Tensor& x) {
    return down_proj->forward(at::silu(gate_proj->forward(x)) * up_proj->forward(x));
  }

  std::shared_ptr<LinearLayer> gate_proj, up_proj, down_proj;
};

struct LlamaBlock : torch::nn::Module {
  LlamaBlock(const TransformerConfig& config, double dropout)
      : dropout(dropout),
        self_attn(register_module("self_attn", std::make_shared<LlamaAttention>(config))),
        mlp(register_module("mlp", std::make_shared<LlamaMlp>(config))),
        input_layernorm(
            register_module("input_layernorm", std::make_shared<RmsNorm>(config.width))),
        post_attention_layernorm(
            register_module("post_attention_layernorm", std::make_shared<RmsNorm>(config.width))) {}

  at::Tensor forward(const at::Tensor& x, const Rotation& rotation) {
    const at::Tensor attended = x + drop(self_attn->forward(input_layernorm->forward(x), rotation));
    return attended + drop(mlp->forward(post_attention_layernorm->forward(attended)));
  }

  at::Tensor drop(const at::Tensor& x) const { return at::dropout(x, dropout, is_training()); }

  const double dropout;
  std::shared_ptr<LlamaAttention> self_attn;
  std::shared_ptr<LlamaMlp> mlp;
  std::shared_ptr<RmsNorm> input_layernorm, post_attention_layernorm;
};

// Gives the blocks their names, layers.0, layers.1, ...
struct LlamaBlocks : torch::nn::Module {
  LlamaBlocks(const TransformerConfig& config, double dropout) {
    for (int64_t i = 0; i < config.layers; ++i) {
      all.push_back(
          register_module(std::to_string(i), std::make_shared<LlamaBlock>(config, dropout)));
    }
  }

  std::vector<std::shared_ptr<LlamaBlock>> all;
};

}  // namespace

class LlamaDecoder : public torch::nn::Module {
 public:
  LlamaDecoder(const TransformerConfig& config, const DecoderOptions& options)
      : head_width_(config.width / config.heads),
        dropout_(options.dropout),
        checkpoint_blocks_(options.checkpoint_activations),
        embed_tokens(register_module(
            "embed_tokens", std::make_shared<EmbeddingTable>(config.vocabulary, config.width))),
        layers_(register_module("layers", std::make_shared<LlamaBlocks>(config, options.dropout))),
        norm_(register_module("norm", std::make_shared<RmsNorm>(config.width))) {}

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embed_tokens->forward(tokens);
    const auto rotation =
        std::make_shared<const Rotation>(tokens.size(1), head_width_, x.options());
    x = at::dropout(x, dropout_, is_training());
    for (const std::shared_ptr<LlamaBlock>& block : layers_->all) {
      const auto body = [block, rotation](const at::Tensor& input) {
        return block->forward(input, *rotation);
      };
      x = run_block(checkpoint_blocks_ && is_training(), body, x);
    }
    return norm_->forward(x);
  }

 private:
  const int64_t head_width_;
  const double dropout_;
  const bool checkpoint_blocks_;

 public:
  const std::shared_ptr<EmbeddingTable> embed_tokens;

 private:
  std::shared_ptr<LlamaBlocks> layers_;
  std::shared_ptr<RmsNorm> norm_;
};

Llama::Llama(const TransformerConfig& config, const DecoderOptions& options)
    : config_(config),
      model_(register_module("model", std::make_shared<LlamaDecoder>(config, options))) {
  ELIXIR_CHECK(config.family == planner::Family::kLlama && config.heads > 0 &&
                   config.width % (2 * config.heads) == 0 && config.kv_heads > 0 &&
                   config.heads % config.kv_heads == 0,
               "{} heads, {} of keys, for a width of {}", config.heads, config.kv_heads,
               config.width);
  if (!config.tied) {
    lm_head_ = register_module(
        "lm_head", std::make_shared<LinearLayer>(config.width, config.vocabulary, false));
  }
  initialise_decoder(*this, options);
}

Llama::~Llama() = default;

at::Tensor Llama::forward(const at::Tensor& tokens) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= config_.context, "Llama ", config_.name,
              " takes tokens [batch, seq] of at most ", config_.context, " a sequence, but got ",
              tokens.sizes());
  const at::Tensor hidden = model_->forward(tokens);
  return lm_head_ ? lm_head_->forward(hidden) : at::linear(hidden, model_->embed_tokens->weight);
}

at::Tensor Llama::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return next_token_loss(forward(tokens), targets);
}

}  // namespace elixir
