#include "models/decoder_parts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "base/check.h"
#include "client/tensors/checkpoint.h"
#include "models/mix_bits.h"

namespace elixir {
namespace {

// `of` [batch, fewer, seq, head_width] with each head as often as there are `heads`.
at::Tensor repeated_heads(const at::Tensor& of, int64_t heads) {
  const int64_t batch = of.size(0), fewer = of.size(1), seq = of.size(2), width = of.size(3);
  ELIXIR_CHECK(heads % fewer == 0, "{} heads of keys for {} of queries", fewer, heads);
  if (fewer == heads) return of;
  return of.unsqueeze(2)
      .expand({batch, fewer, heads / fewer, seq, width})
      .reshape({batch, heads, seq, width});
}

// No fused kernel caps scores.
at::Tensor capped_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const AttentionScores& how) {
  ELIXIR_CHECK(how.scale > 0 && how.mask.defined(), "capped scores need a scale and a mask");
  const at::Tensor scores = at::matmul(queries, keys.transpose(2, 3)) * how.scale;
  const at::Tensor capped = at::tanh(scores / how.softcap) * how.softcap + how.mask;
  const at::Tensor shares = at::softmax(capped, -1, at::kFloat).to(queries.scalar_type());
  return at::matmul(shares, values);
}

}  // namespace

LinearLayer::LinearLayer(int64_t in, int64_t out, bool with_bias)
    : weight(register_parameter("weight", torch::empty({out, in}))) {
  if (with_bias) bias = register_parameter("bias", torch::empty({out}));
}

at::Tensor LinearLayer::forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

LayerNorm::LayerNorm(int64_t width, double eps)
    : eps(eps),
      weight(register_parameter("weight", torch::empty({width}))),
      bias(register_parameter("bias", torch::empty({width}))) {}

at::Tensor LayerNorm::forward(const at::Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, eps);
}

EmbeddingTable::EmbeddingTable(int64_t count, int64_t width, int64_t padding)
    : padding(padding), weight(register_parameter("weight", torch::empty({count, width}))) {}

at::Tensor EmbeddingTable::forward(const at::Tensor& indices) {
  return at::embedding(weight, indices, padding);
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const AttentionScores& scores) {
  const std::optional<double> scale =
      scores.scale > 0 ? std::optional<double>(scores.scale) : std::nullopt;
  const int64_t heads = queries.size(1);
  at::Tensor attended;
  if (!scores.mask.defined()) {
    attended = at::scaled_dot_product_attention(queries, keys, values, {}, /*dropout_p=*/0,
                                                /*is_causal=*/true, scale,
                                                /*enable_gqa=*/keys.size(1) != heads);
  } else {
    // With a mask CUDA's fused kernels take no shared heads.
    const at::Tensor own_keys = repeated_heads(keys, heads);
    const at::Tensor own_values = repeated_heads(values, heads);
    attended = scores.softcap > 0
                   ? capped_attention(queries, own_keys, own_values, scores)
                   : at::scaled_dot_product_attention(queries, own_keys, own_values, scores.mask,
                                                      /*dropout_p=*/0, /*is_causal=*/false, scale);
  }
  return attended.transpose(1, 2).reshape({queries.size(0), queries.size(2), -1});
}

at::Tensor run_block(bool checkpointed, const std::function<at::Tensor(const at::Tensor&)>& body,
                     const at::Tensor& x) {
  return checkpointed ? checkpoint(body, x) : body(x);
}

void initialise_decoder(torch::nn::Module& model, const DecoderOptions& options,
                        const planner::TransformerConfig& config) {
  const at::NoGradGuard no_grad;
  uint64_t generator_seed = mix_bits(options.seed);
  for (auto& parameter : model.named_parameters()) {
    at::Tensor& weight = parameter.value();
    if (parameter.key().ends_with("bias")) {
      weight.zero_();
    } else if (weight.dim() == 1) {
      weight.fill_(config.gemma ? 0 : 1);
    } else {
      weight.normal_(0, config.init_deviation,
                     at::make_generator<at::CPUGeneratorImpl>(generator_seed));
    }
    ++generator_seed;
    if (options.dtype != at::kFloat) weight.set_data(weight.to(options.dtype));
  }
}

}  // namespace elixir
