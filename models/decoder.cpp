#include "models/decoder.h"

#include <ATen/Functions.h>

#include "client/tensors/linear_cross_entropy.h"
#include "models/families.h"

namespace elixir {
namespace {

using planner::Family;
using planner::TransformerConfig;

Status check_sizes(const TransformerConfig& config) {
  const bool rotary = config.family == Family::kLlama;
  const bool divides = config.heads >= 1 && config.width % config.heads == 0;
  const bool whole = config.heads >= 1 && (config.head_width != 0 || divides);
  if (!whole || (rotary && config.head_numel() % 2 != 0)) {
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
  }
  return error(Code::kInternal, "{}: of no known family", config.name);
}

at::Tensor Decoder::checked_hidden(const at::Tensor& tokens) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= config_.context, config_.name,
              " takes tokens [batch, seq] of at most ", config_.context, " a sequence, but got ",
              tokens.sizes());
  return hidden(tokens);
}

at::Tensor Decoder::forward(const at::Tensor& tokens) {
  const at::Tensor all = at::linear(checked_hidden(tokens), head());
  const double cap = config_.final_softcap;
  return cap > 0 ? at::tanh(all / cap) * cap : all;
}

at::Tensor Decoder::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return linear_cross_entropy(checked_hidden(tokens), head(), targets, /*slice=*/0,
                              config_.final_softcap);
}

}  // namespace elixir
