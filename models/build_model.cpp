#include "models/build_model.h"

#include "models/gpt2.h"
#include "models/llama.h"
#include "models/opt.h"

namespace elixir {
namespace {

using planner::Family;
using planner::TransformerConfig;

template <typename Model>
BuiltModel built(std::shared_ptr<Model> model) {
  return {model, [model](const at::Tensor& tokens, const at::Tensor& targets) {
            return model->loss(tokens, targets);
          }};
}

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

Result<BuiltModel> build_model(const TransformerConfig& config, const DecoderOptions& options) {
  ELIXIR_RETURN_IF_ERROR(check_sizes(config));
  switch (config.family) {
    case Family::kOpt:
      return built(std::make_shared<Opt>(config, options));
    case Family::kLlama:
      return built(std::make_shared<Llama>(config, options));
    case Family::kGpt2:
      return built(std::make_shared<Gpt2>(config, options));
  }
  return error(Code::kInternal, "{}: of no known family", config.name);
}

}  // namespace elixir
