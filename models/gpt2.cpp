#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/decoder_parts.h"
#include "models/families.h"
#include "models/mix_bits.h"

namespace elixir {
namespace {

using planner::TransformerConfig;

// A weight [in, out] and a bias: Hugging Face's Conv1D.
struct Projection : torch::nn::Module {
  Projection(int64_t in, int64_t out)
      : weight(register_parameter("weight", torch::empty({in, out}))),
        bias(register_parameter("bias", torch::empty({out}))) {}

  at::Tensor forward(const at::Tensor& x) {  // [batch, seq, in] to [batch, seq, out]
    const at::Tensor rows = x.reshape({-1, x.size(2)});
    return at::addmm(bias, rows, weight).view({x.size(0), x.size(1), -1});
  }

  at::Tensor weight, bias;
};

struct Attention : torch::nn::Module {
  Attention(const TransformerConfig& config, double dropout)
      : heads(config.heads),
        dropout(dropout),
        c_attn(register_module("c_attn",
                               std::make_shared<Projection>(config.width, 3 * config.width))),
        c_proj(
            register_module("c_proj", std::make_shared<Projection>(config.width, config.width))) {}

  at::Tensor forward(const at::Tensor& x) {
    const int64_t batch = x.size(0), seq = x.size(1), width = x.size(2);
    std::vector<at::Tensor> qkv = c_attn->forward(x).split(width, 2);
    for (at::Tensor& part : qkv) {
      part = part.view({batch, seq, heads, width / heads}).transpose(1, 2);
    }
    const at::Tensor attended = at::scaled_dot_product_attention(
        qkv[0], qkv[1], qkv[2], {}, is_training() ? dropout : 0.0, /*is_causal=*/true);
    const at::Tensor joined = attended.transpose(1, 2).reshape({batch, seq, width});
    return at::dropout(c_proj->forward(joined), dropout, is_training());
  }

  const int64_t heads;
  const double dropout;
  std::shared_ptr<Projection> c_attn, c_proj;
};

struct Mlp : torch::nn::Module {
  Mlp(const TransformerConfig& config, double dropout)
      : dropout(dropout),
        c_fc(register_module("c_fc", std::make_shared<Projection>(config.width, config.mlp_width))),
        c_proj(register_module("c_proj",
                               std::make_shared<Projection>(config.mlp_width, config.width))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::gelu(c_fc->forward(x), "tanh");
    return at::dropout(c_proj->forward(hidden), dropout, is_training());
  }

  const double dropout;
  std::shared_ptr<Projection> c_fc, c_proj;
};

struct Block : torch::nn::Module {
  Block(const TransformerConfig& config, double dropout)
      : ln_1(register_module("ln_1", std::make_shared<LayerNorm>(config.width, config.norm_eps))),
        attn(register_module("attn", std::make_shared<Attention>(config, dropout))),
        ln_2(register_module("ln_2", std::make_shared<LayerNorm>(config.width, config.norm_eps))),
        mlp(register_module("mlp", std::make_shared<Mlp>(config, dropout))) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + attn->forward(ln_1->forward(x));
    return attended + mlp->forward(ln_2->forward(attended));
  }

  std::shared_ptr<LayerNorm> ln_1;
  std::shared_ptr<Attention> attn;
  std::shared_ptr<LayerNorm> ln_2;
  std::shared_ptr<Mlp> mlp;
};

// Which of GPT-2's four ways of initialisation a parameter gets. The generator is its own, so a
// parameter's first values depend on the seed and on its place alone.
void initialise_parameter(at::Tensor& parameter, const std::string& name,
                          const TransformerConfig& config, uint64_t generator_seed) {
  if (name.ends_with("bias")) {
    parameter.zero_();
  } else if (name.find("ln_") != std::string::npos) {
    parameter.fill_(1);
  } else {
    const double to_residual = 1 / std::sqrt(2.0 * static_cast<double>(config.layers));
    const double scale = name.ends_with("c_proj.weight") ? to_residual : 1;
    parameter.normal_(0, config.init_deviation * scale,
                      at::make_generator<at::CPUGeneratorImpl>(generator_seed));
  }
}

// The low 32 bits of a seed are what CPU generators use: neighbours differ in them, hashes might
// not.
void initialise(torch::nn::Module& model, const DecoderOptions& options,
                const TransformerConfig& config) {
  const at::NoGradGuard no_grad;
  uint64_t generator_seed = mix_bits(options.seed);
  for (auto& parameter : model.named_parameters()) {
    at::Tensor& weight = parameter.value();
    initialise_parameter(weight, parameter.key(), config, generator_seed++);
    // One by one: memory that is not written yet is not there yet, so at no time is there a whole
    // model in FP32 beside the one in 16 bits.
    if (options.dtype != at::kFloat) weight.set_data(weight.to(options.dtype));
  }
}

struct Transformer : torch::nn::Module {
  Transformer(const TransformerConfig& config, const DecoderOptions& options)
      : options(options),
        wte(register_module("wte",
                            std::make_shared<EmbeddingTable>(config.vocabulary, config.width))),
        wpe(register_module("wpe", std::make_shared<EmbeddingTable>(config.context, config.width))),
        h(register_module("h",
                          std::make_shared<Blocks<Block>>(config.layers, config, options.dropout))),
        ln_f(register_module("ln_f", std::make_shared<LayerNorm>(config.width, config.norm_eps))) {}

  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
    const at::Tensor x = wte->forward(tokens) + wpe->forward(positions);
    return ln_f->forward(
        h->forward(at::dropout(x, options.dropout, is_training()), options.checkpoint_activations));
  }

  const DecoderOptions options;
  std::shared_ptr<EmbeddingTable> wte, wpe;
  std::shared_ptr<Blocks<Block>> h;
  std::shared_ptr<LayerNorm> ln_f;
};

struct Gpt2 : Decoder {
  Gpt2(const TransformerConfig& config, const DecoderOptions& options)
      : Decoder(config),
        transformer(
            register_module("transformer", std::make_shared<Transformer>(config, options))) {
    initialise(*this, options, config);
  }

  at::Tensor hidden(const at::Tensor& tokens) override { return transformer->forward(tokens); }
  const at::Tensor& head() const override { return transformer->wte->weight; }

  std::shared_ptr<Transformer> transformer;
};

}  // namespace

std::shared_ptr<Decoder> make_gpt2(const TransformerConfig& config, const DecoderOptions& options) {
  return std::make_shared<Gpt2>(config, options);
}

}  // namespace elixir
