#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <limits>

#include "base/check.h"
#include "models/decoder_parts.h"
#include "models/families.h"
#include "models/rotation.h"

namespace elixir {
namespace {

using planner::TransformerConfig;

// Zhang and Sennrich, arXiv 1910.07467. `from_one`: the weight is what is added to 1, in FP32, for
// 16 bits would round what is near 1.
struct RmsNorm : torch::nn::Module {
  RmsNorm(int64_t width, const TransformerConfig& config)
      : from_one(config.gemma),
        eps(config.norm_eps),
        weight(register_parameter("weight", torch::empty({width}))) {}

  at::Tensor forward(const at::Tensor& x) {
    if (!from_one) return at::rms_norm(x, weight.sizes(), weight, eps);
    return at::rms_norm(x.to(at::kFloat), weight.sizes(), weight.to(at::kFloat) + 1, eps)
        .to(x.scalar_type());
  }

  const bool from_one;
  const double eps;
  at::Tensor weight;
};

// What a layer knows of places: how they turn queries and keys, and what a token sees. Without a
// mask it sees all tokens before it.
struct Places {
  Rotation rotation;
  at::Tensor mask = {};
};

// [seq, seq], added to scores: -inf for later tokens, and for those a window or more before.
at::Tensor seen_mask(int64_t seq, int64_t window, const at::TensorOptions& options) {
  const at::Tensor hidden = at::full({seq, seq}, -std::numeric_limits<double>::infinity(), options);
  const at::Tensor later = hidden.triu(1);
  return window > 0 && window < seq ? later + hidden.tril(-window) : later;
}

Places places_of(const TransformerConfig& config, bool windowed, const at::Tensor& x) {
  const planner::Rotary& rotary =
      windowed && config.window_rotary ? *config.window_rotary : config.rotary;
  const int64_t seq = x.size(1), window = windowed ? config.window : 0;
  // OLMo 2 turns in FP32.
  const at::TensorOptions turned =
      config.norms_behind ? x.options().dtype(at::kFloat) : x.options();
  Places places{Rotation(rotary, seq, config.head_numel(), turned)};
  ELIXIR_CHECK(!windowed || window > 0, "{}: a window of {}", config.name, window);
  const bool masked = config.attention_softcap > 0 || (window > 0 && window < seq);
  if (masked) places.mask = seen_mask(seq, window, x.options());
  return places;
}

struct LlamaAttention : torch::nn::Module {
  explicit LlamaAttention(const TransformerConfig& config)
      : heads(config.heads),
        kv_heads(config.kv_heads),
        head_width(config.head_numel()),
        softcap(config.attention_softcap),
        scale(config.attention_scale > 0
                  ? config.attention_scale
                  : 1 / std::sqrt(config.query_scalar > 0 ? config.query_scalar
                                                          : static_cast<double>(head_width))),
        whole_norm(config.whole_qk_norm) {
    const int64_t width = config.width;
    const int64_t q_width = heads * head_width, kv_width = kv_heads * head_width;
    const auto linear = [&](const char* name, int64_t in, int64_t out, bool bias) {
      return register_module(name, std::make_shared<LinearLayer>(in, out, bias));
    };
    if (config.fused_projections) {
      o_proj = linear("o_proj", q_width, width, false);
      qkv_proj = linear("qkv_proj", width, q_width + 2 * kv_width, false);
      return;
    }
    q_proj = linear("q_proj", width, q_width, config.qkv_bias);
    k_proj = linear("k_proj", width, kv_width, config.qkv_bias);
    v_proj = linear("v_proj", width, kv_width, config.qkv_bias);
    o_proj = linear("o_proj", q_width, width, config.o_bias);
    if (!config.qk_norm) return;
    const auto norm = [&](const char* name, int64_t heads_width) {
      return register_module(
          name, std::make_shared<RmsNorm>(whole_norm ? heads_width : head_width, config));
    };
    q_norm = norm("q_norm", q_width);
    k_norm = norm("k_norm", kv_width);
  }

  at::Tensor forward(const at::Tensor& x, const Places& places) {
    at::Tensor queries, keys, values;
    if (qkv_proj) {
      const at::Tensor all = qkv_proj->forward(x);
      const int64_t q_width = heads * head_width, kv_width = kv_heads * head_width;
      queries = split_heads(all.narrow(2, 0, q_width), heads);
      keys = split_heads(all.narrow(2, q_width, kv_width), kv_heads);
      values = split_heads(all.narrow(2, q_width + kv_width, kv_width), kv_heads);
    } else {
      queries = q_proj->forward(x);
      keys = k_proj->forward(x);
      if (whole_norm) {
        queries = q_norm->forward(queries);
        keys = k_norm->forward(keys);
      }
      queries = split_heads(queries, heads);
      keys = split_heads(keys, kv_heads);
      values = split_heads(v_proj->forward(x), kv_heads);
    }
    if (q_norm && !whole_norm) {
      queries = q_norm->forward(queries);
      keys = k_norm->forward(keys);
    }
    if (turns) {
      queries = places.rotation.turn(queries);
      keys = places.rotation.turn(keys);
    }
    return o_proj->forward(causal_attention(
        queries, keys, values, {.scale = scale, .mask = places.mask, .softcap = softcap}));
  }

  const int64_t heads, kv_heads, head_width;
  const double softcap, scale;
  const bool whole_norm;
  bool turns = true;  // has rotary positions
  std::shared_ptr<LinearLayer> q_proj, k_proj, v_proj, o_proj;
  std::shared_ptr<LinearLayer> qkv_proj;    // null: one each
  std::shared_ptr<RmsNorm> q_norm, k_norm;  // null: none
};

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, bool gelu) {
  return (gelu ? at::gelu(gate, "tanh") : at::silu(gate)) * up;
}

// SwiGLU or GeGLU (Shazeer, arXiv 2002.05202).
struct LlamaMlp : torch::nn::Module {
  explicit LlamaMlp(const TransformerConfig& config) : gelu(config.gelu) {
    const int64_t width = config.width, inner = config.mlp_width;
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, std::make_shared<LinearLayer>(in, out, config.mlp_bias));
    };
    if (config.fused_projections) {
      gate_up_proj = linear("gate_up_proj", width, 2 * inner);
    } else {
      gate_proj = linear("gate_proj", width, inner);
      up_proj = linear("up_proj", width, inner);
    }
    down_proj = linear("down_proj", inner, width);
  }

  at::Tensor forward(const at::Tensor& x) {
    if (!gate_up_proj) {
      return down_proj->forward(gated(gate_proj->forward(x), up_proj->forward(x), gelu));
    }
    const std::vector<at::Tensor> both = gate_up_proj->forward(x).chunk(2, -1);
    return down_proj->forward(gated(both[0], both[1], gelu));
  }

  const bool gelu;
  std::shared_ptr<LinearLayer> gate_proj, up_proj, down_proj;
  std::shared_ptr<LinearLayer> gate_up_proj;  // null: one each
};

struct Expert : torch::nn::Module {
  Expert(int64_t width, int64_t inner) {
    w1 = register_module("w1", std::make_shared<LinearLayer>(width, inner, false));
    w2 = register_module("w2", std::make_shared<LinearLayer>(inner, width, false));
    w3 = register_module("w3", std::make_shared<LinearLayer>(width, inner, false));
  }
  at::Tensor forward(const at::Tensor& x) {
    return w2->forward(gated(w1->forward(x), w3->forward(x), /*gelu=*/false));
  }
  std::shared_ptr<LinearLayer> w1, w2, w3;
};

struct Experts : torch::nn::Module {
  explicit Experts(const TransformerConfig& config) {
    for (int64_t i = 0; i < config.experts; ++i) {
      all.push_back(register_module(std::to_string(i),
                                    std::make_shared<Expert>(config.width, config.mlp_width)));
    }
  }
  std::vector<std::shared_ptr<Expert>> all;
};

// Mixtral's (Jiang et al., arXiv 2401.04088): each token goes to experts_per_token of the experts,
// weighted by the router. Where tokens have no values (the meta device) each expert takes equally
// many.
struct SparseMlp : torch::nn::Module {
  explicit SparseMlp(const TransformerConfig& config)
      : per_token(config.experts_per_token),
        gate(register_module("gate",
                             std::make_shared<LinearLayer>(config.width, config.experts, false))),
        experts(register_module("experts", std::make_shared<Experts>(config))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor tokens = x.reshape({-1, x.size(-1)});
    const auto n_experts = static_cast<int64_t>(experts->all.size());
    auto [weights, chosen] = at::softmax(gate->forward(tokens), -1, at::kFloat).topk(per_token, -1);
    weights = (weights / weights.sum(-1, true)).to(x.scalar_type()).reshape({-1, 1});
    const at::Tensor order = at::argsort(chosen.reshape({-1}), /*dim=*/int64_t{0});
    const std::vector<int64_t> counts = counts_of(chosen, n_experts);
    at::Tensor sum = at::zeros_like(tokens);
    int64_t begin = 0;
    for (int64_t i = 0; i < n_experts; ++i) {
      const int64_t count = counts[static_cast<size_t>(i)];
      const at::Tensor slots = order.narrow(0, begin, count);
      const at::Tensor rows = at::div(slots, at::Scalar(per_token), "floor");
      const at::Tensor out =
          experts->all[static_cast<size_t>(i)]->forward(tokens.index_select(0, rows));
      sum = sum.index_add(0, rows, out * weights.index_select(0, slots));
      begin += count;
    }
    return sum.view(x.sizes());
  }

  static std::vector<int64_t> counts_of(const at::Tensor& chosen, int64_t n_experts) {
    std::vector<int64_t> counts(static_cast<size_t>(n_experts));
    if (!chosen.is_meta()) {
      const at::Tensor counted = chosen.reshape({-1}).bincount({}, n_experts).to(at::kCPU);
      for (int64_t i = 0; i < n_experts; ++i) {
        counts[static_cast<size_t>(i)] = counted[i].item<int64_t>();
      }
      return counts;
    }
    for (int64_t i = 0; i < n_experts; ++i) {
      counts[static_cast<size_t>(i)] =
          chosen.numel() * (i + 1) / n_experts - chosen.numel() * i / n_experts;
    }
    return counts;
  }

  const int64_t per_token;
  std::shared_ptr<LinearLayer> gate;
  std::shared_ptr<Experts> experts;
};

struct LlamaBlock : torch::nn::Module {
  LlamaBlock(const TransformerConfig& config, double dropout)
      : dropout(dropout),
        residual_scale(config.residual_scale),
        self_attn(register_module("self_attn", std::make_shared<LlamaAttention>(config))) {
    if (config.experts > 0) {
      sparse = register_module("block_sparse_moe", std::make_shared<SparseMlp>(config));
    } else {
      mlp = register_module("mlp", std::make_shared<LlamaMlp>(config));
    }
    const auto norm = [&](const char* name) {
      return register_module(name, std::make_shared<RmsNorm>(config.width, config));
    };
    if (!config.norms_behind) input_layernorm = norm("input_layernorm");
    post_attention_layernorm = norm("post_attention_layernorm");
    if (config.four_norms) pre_feedforward_layernorm = norm("pre_feedforward_layernorm");
    if (config.four_norms || config.norms_behind) {
      post_feedforward_layernorm = norm("post_feedforward_layernorm");
    }
  }

  at::Tensor forward(const at::Tensor& x, const Places& full, const Places& near) {
    const Places& places = windowed ? near : full;
    at::Tensor attended = self_attn->forward(normed(input_layernorm, x), places);
    if (!post_feedforward_layernorm) {
      attended = x + added(attended);
      return attended + added(feed_forward(post_attention_layernorm->forward(attended)));
    }
    attended = x + added(post_attention_layernorm->forward(attended));
    return attended + added(post_feedforward_layernorm->forward(
                          feed_forward(normed(pre_feedforward_layernorm, attended))));
  }

  // Without a norm, what comes.
  static at::Tensor normed(const std::shared_ptr<RmsNorm>& norm, const at::Tensor& x) {
    return norm ? norm->forward(x) : x;
  }

  at::Tensor feed_forward(const at::Tensor& x) {
    return sparse ? sparse->forward(x) : mlp->forward(x);
  }
  // What a residual stream gets.
  at::Tensor added(const at::Tensor& x) const {
    const at::Tensor kept = at::dropout(x, dropout, is_training());
    return residual_scale > 0 ? kept * residual_scale : kept;
  }

  const double dropout, residual_scale;
  bool windowed = false;
  std::shared_ptr<LlamaAttention> self_attn;
  std::shared_ptr<LlamaMlp> mlp;             // or
  std::shared_ptr<SparseMlp> sparse;         // this one
  std::shared_ptr<RmsNorm> input_layernorm;  // null: none, with norms behind alone
  std::shared_ptr<RmsNorm> post_attention_layernorm;
  std::shared_ptr<RmsNorm> pre_feedforward_layernorm, post_feedforward_layernorm;  // or null
};

struct LlamaStack : torch::nn::Module {
  LlamaStack(const TransformerConfig& config, const DecoderOptions& options)
      : config(config),
        options(options),
        embed_tokens(register_module(
            "embed_tokens", std::make_shared<EmbeddingTable>(config.vocabulary, config.width,
                                                             config.padding_token))),
        layers(register_module("layers", std::make_shared<Blocks<LlamaBlock>>(config.layers, config,
                                                                              options.dropout))),
        norm(register_module("norm", std::make_shared<RmsNorm>(config.width, config))) {
    for (int64_t i = 0; i < config.layers; ++i) {
      LlamaBlock& block = *layers->all[static_cast<size_t>(i)];
      block.windowed = config.has_window(i);
      block.self_attn->turns = config.has_rotation(i);
    }
  }

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embed_tokens->forward(tokens);
    // Gemma's embeddings are as large as its norms' outputs. The factor has the weights' type.
    if (config.gemma) {
      x = x * at::full({}, std::sqrt(static_cast<double>(config.width)), x.options());
    }
    if (config.embedding_scale > 0) x = x * config.embedding_scale;
    const Places full = places_of(config, /*windowed=*/false, x);
    const Places near = config.window > 0 ? places_of(config, /*windowed=*/true, x) : full;
    return norm->forward(layers->forward(at::dropout(x, options.dropout, is_training()),
                                         options.checkpoint_activations, full, near));
  }

  const TransformerConfig config;
  const DecoderOptions options;
  std::shared_ptr<EmbeddingTable> embed_tokens;
  std::shared_ptr<Blocks<LlamaBlock>> layers;
  std::shared_ptr<RmsNorm> norm;
};

struct Llama : Decoder {
  Llama(const TransformerConfig& config, const DecoderOptions& options)
      : Decoder(config),
        model(register_module("model", std::make_shared<LlamaStack>(config, options))) {
    if (!config.tied) {
      lm_head = register_module(
          "lm_head", std::make_shared<LinearLayer>(config.width, config.vocabulary, false));
    }
    initialise_decoder(*this, options, config);
  }

  at::Tensor hidden(const at::Tensor& tokens) override { return model->forward(tokens); }
  const at::Tensor& head() const override {
    return lm_head ? lm_head->weight : model->embed_tokens->weight;
  }

  std::shared_ptr<LlamaStack> model;
  std::shared_ptr<LinearLayer> lm_head;  // null: the token embedding is used
};

}  // namespace

std::shared_ptr<Decoder> make_llama(const TransformerConfig& config,
                                    const DecoderOptions& options) {
  return std::make_shared<Llama>(config, options);
}

}  // namespace elixir
