#include "models/decoder_parts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/variable.h>

#include "client/tensors/checkpoint.h"
#include "models/mix_bits.h"

namespace elixir {
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

EmbeddingTable::EmbeddingTable(int64_t count, int64_t width)
    : weight(register_parameter("weight", torch::empty({count, width}))) {}

at::Tensor EmbeddingTable::forward(const at::Tensor& indices) {
  return at::embedding(weight, indices);
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values) {
  const at::Tensor attended = at::scaled_dot_product_attention(
      queries, keys, values, {}, /*dropout_p=*/0, /*is_causal=*/true, /*scale=*/{},
      /*enable_gqa=*/keys.size(1) != queries.size(1));
  return attended.transpose(1, 2).reshape({queries.size(0), queries.size(2), -1});
}

at::Tensor run_block(bool checkpointed, const std::function<at::Tensor(const at::Tensor&)>& body,
                     const at::Tensor& x) {
  return checkpointed ? checkpoint(body, x) : body(x);
}

void initialise_decoder(torch::nn::Module& model, const DecoderOptions& options) {
  const at::NoGradGuard no_grad;
  uint64_t generator_seed = mix_bits(options.seed);
  for (auto& parameter : model.named_parameters()) {
    at::Tensor& weight = parameter.value();
    if (parameter.key().ends_with("bias")) {
      weight.zero_();
    } else if (weight.dim() == 1) {
      weight.fill_(1);
    } else {
      weight.normal_(0, kInitDeviation, at::make_generator<at::CPUGeneratorImpl>(generator_seed));
    }
    ++generator_seed;
    if (options.dtype != at::kFloat) weight.set_data(weight.to(options.dtype));
  }
}

}  // namespace elixir
