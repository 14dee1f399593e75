#include "models/decoder.h"

#include <ATen/Functions.h>

#include "client/tensors/linear_cross_entropy.h"
#include "models/families.h"

namespace elixir {
namespace {

using planner::Family;
using planner::TransformerConfig;

Status check_sizes(const TransformerConfig& config) {
  const bool rotary = config.family != Family::kGpt2 && config.family != Family::kOpt;
  const bool divides = config.heads >= 1 && config.width % config.heads == 0;
  const bool whole = config.heads >= 1 && (config.head_width != 0 || divides);
  if (!whole || (rotary && config.rotated_numel() % 2 != 0)) {
    return error(Code::kBadInput, "{}: {} heads for a width of {}: a head takes an {} share of it",
                 config.name, config.heads, config.width, rotary ? "even, whole" : "whole");
  }
  if (rotary && (config.kv_heads < 1 || config.heads % config.kv_heads != 0)) {
    return error(Code::kBadInput,
                 "{}: {} heads of keys for {} of queries: each serves equally many", config.name,
                 config.kv_heads, config.heads);
  }
  if (config.family == Family::kGpt2 && !config.tied) {
    return error(Code::kBadInput,
                 "{}: a GPT-2 with an output projection of its own cannot be built", config.name);
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Decoder>> build_decoder(const TransformerConfig& config,
                                               const DecoderOptions& options) {
  ELIXIR_RETURN_IF_ERROR(check_sizes(config));
  switch (config.family) {
    case Family::kOpt:
      return make_opt(config, options);
    case Family::kLlama:
      return make_llama(config, options);
    case Family::kGpt2:
      return make_gpt2(config, options);
    case Family::kNeoX:
    case Family::kPhi:
      return make_parallel(config, options);
  }
  return error(Code::kInternal, "{}: of no known family", config.name);
}

at::Tensor Decoder::checked_hidden(const at::Tensor& tokens) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= config_.context, config_.name,
              " takes tokens [batch, seq] of at most ", config_.context, " a sequence, but got ",
              tokens.sizes());
  const at::Tensor all = hidden(tokens);
  return config_.logits_divisor > 0 ? all / config_.logits_divisor : all;
}

// Hidden values and head such that their product has the bias: 1 times a further column.
std::pair<at::Tensor, at::Tensor> Decoder::with_bias(const at::Tensor& hidden) const {
  const at::Tensor bias = head_bias();
  if (!bias.defined()) return {hidden, head()};
  const at::Tensor ones = at::ones({hidden.size(0), hidden.size(1), 1}, hidden.options());
  return {at::cat({hidden, ones}, 2), at::cat({head(), bias.unsqueeze(1)}, 1)};
}

at::Tensor Decoder::forward(const at::Tensor& tokens) {
  const at::Tensor all = at::linear(checked_hidden(tokens), head(), head_bias());
  const double cap = config_.final_softcap;
  return cap > 0 ? at::tanh(all / cap) * cap : all;
}

at::Tensor Decoder::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  const auto [hidden, head] = with_bias(checked_hidden(tokens));
  return linear_cross_entropy(hidden, head, targets, /*slice=*/0, config_.final_softcap);
}

}  // namespace elixir
