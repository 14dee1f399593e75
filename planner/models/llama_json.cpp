// Llama and its relatives, for planner/models/family_json.h.

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "planner/json_fields.h"
#include "planner/models/family_json.h"
#include "planner/models/rotary_json.h"

namespace elixir::planner {
namespace {

constexpr int64_t kGemmaHeadWidth = 256;
// num_key_value_heads, where a file leaves it out.
constexpr int64_t kMistralKvHeads = 8, kQwenKvHeads = 32, kGemmaKvHeads = 4;

// Hugging Face's, of most types, where a file leaves it out.
constexpr double kLlamaNormEps = 1e-6;

// But for those that Gemma 3's files may leave out.
void read_other_sizes(ConfigFields& fields, TransformerConfig& config) {
  config.width = fields.size("hidden_size", kMaxWidth);
  config.layers = fields.size("num_hidden_layers", kMaxLayers);
  // null means as many as of queries, whatever a file without the field means.
  const bool as_queries = config.kv_heads == 0 || fields.has("num_key_value_heads");
  config.kv_heads =
      fields.size("num_key_value_heads", kMaxWidth, as_queries ? config.heads : config.kv_heads);
  config.mlp_width = fields.size("intermediate_size", kMaxMlpWidth);
  config.head_width = fields.size("head_dim", kMaxHeadWidth, config.head_width);
  config.norm_eps = fields.number("rms_norm_eps", config.norm_eps);
  read_deviation(fields, "initializer_range", config);
}

// What Llama, Mistral and the others have in common.
void read_llama_sizes(ConfigFields& fields, TransformerConfig& config) {
  config.family = Family::kLlama;
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("max_position_embeddings", kMaxRows);
  config.heads = fields.size("num_attention_heads", kMaxWidth);
  read_other_sizes(fields, config);
  read_rotary(fields, config);
}

// But for Gemma.
void read_silu(ConfigFields& fields, TransformerConfig& config, double norm_eps = kLlamaNormEps,
               int64_t padding = -1) {
  config.norm_eps = norm_eps;
  read_llama_sizes(fields, config);
  read_padding(fields, padding, config);
  config.tied = fields.flag("tie_word_embeddings", false);
  fields.one_of("hidden_act", {"silu", "swish"});
}

// Biases of the four projections of attention.
void read_attention_bias(ConfigFields& fields, TransformerConfig& config) {
  config.qkv_bias = config.o_bias = fields.flag("attention_bias", false);
}

void require_no_biases(ConfigFields& fields) {
  for (const char* field : {"attention_bias", "mlp_bias"}) fields.require_flag(field, false);
}

// Which layers have the window: 'layer_types', or, without it, those of which `has_window` says so.
void read_windowed(ConfigFields& fields, TransformerConfig& config,
                   const std::function<bool(int64_t)>& has_window) {
  std::vector<bool> windowed;
  if (const nlohmann::json* const types = fields.list("layer_types")) {
    for (const nlohmann::json& type : *types) {
      windowed.push_back(type == "sliding_attention");
      if (type == "sliding_attention" || type == "full_attention") continue;
      return fields.fail(not_computed("'layer_types' has {}", shown(type)));
    }
    if (windowed.size() != static_cast<size_t>(config.layers)) {
      return fields.fail(bad_config("'layer_types' has {} layers, and 'num_hidden_layers' is {}",
                                    windowed.size(), config.layers));
    }
  } else {
    for (int64_t i = 0; i < config.layers; ++i) windowed.push_back(has_window(i));
  }
  const auto count = std::count(windowed.begin(), windowed.end(), true);
  if (count == 0) config.window = 0;
  const bool some = count != 0 && count != config.layers;
  if (some && config.window != 0) config.windowed = std::move(windowed);
}

// A file that does not have the field means Hugging Face's window, one that has null means none.
int64_t window_in(ConfigFields& fields, int64_t missing) {
  constexpr const char* kField = "sliding_window";
  return fields.has(kField) ? fields.size(kField, kMaxRows, /*missing=*/0) : missing;
}

constexpr int64_t kUsualWindow = 4096;

// Some layers see all, others see the last tokens alone.
void read_qwen_window(ConfigFields& fields, TransformerConfig& config) {
  constexpr double kQwenWindowLayers = 28;
  const bool used = fields.flag("use_sliding_window", false);
  const double whole = fields.number("max_window_layers", kQwenWindowLayers);
  config.window = used ? window_in(fields, kUsualWindow) : 0;
  fields.known({"sliding_window", "layer_types"});
  if (config.window == 0) return;
  read_windowed(fields, config, [&](int64_t i) { return static_cast<double>(i) >= whole; });
}

// null means no cap.
double softcap_in(ConfigFields& fields, const char* field, double missing) {
  return fields.has(field) ? fields.number(field, 0) : missing;
}

// `period`: every so many layers one sees all.
void read_later_gemma(ConfigFields& fields, TransformerConfig& config, int64_t period) {
  config.family = Family::kLlama;
  config.tied = fields.flag("tie_word_embeddings", true);
  config.four_norms = config.gemma = config.gelu = true;
  read_padding(fields, /*missing=*/0, config);
  read_attention_bias(fields, config);
  const double scalar = fields.given("query_pre_attn_scalar")
                            ? fields.positive("query_pre_attn_scalar")
                            : kGemmaHeadWidth;
  if (scalar != static_cast<double>(config.head_width)) config.query_scalar = scalar;
  fields.one_of("hidden_activation", {"gelu_pytorch_tanh"});
  fields.one_of("use_bidirectional_attention", {false});
  fields.known({"hidden_act"});  // transformers reads hidden_activation alone
  config.window = window_in(fields, kUsualWindow);
  read_windowed(fields, config,
                [&](int64_t i) { return (i + 1) % std::max<int64_t>(period, 1) != 0; });
}

}  // namespace

void read_llama(ConfigFields& fields, TransformerConfig& config) {
  read_silu(fields, config);
  read_attention_bias(fields, config);
  config.mlp_bias = fields.flag("mlp_bias", false);
}

void read_mistral(ConfigFields& fields, TransformerConfig& config) {
  config.kv_heads = kMistralKvHeads;
  read_silu(fields, config);
  require_no_biases(fields);
  config.window = window_in(fields, kUsualWindow);
  // transformers' AutoModel uses them, and its MistralForCausalLM does not.
  const int64_t window = config.window;
  read_windowed(fields, config, [&](int64_t) { return window != 0; });
  if (config.window == window && config.windowed.empty()) return;
  fields.fail(
      bad_config("'layer_types' and 'sliding_window' differ, and not all of transformers' models "
                 "of this type use 'layer_types'; make them agree, or leave out 'layer_types'"));
}

void read_mixtral(ConfigFields& fields, TransformerConfig& config) {
  config.rotary.base = 1e6;
  config.kv_heads = kMistralKvHeads;
  read_silu(fields, config, 1e-5);
  require_no_biases(fields);
  config.window = window_in(fields, 0);
  fields.one_of("output_router_logits", {false});
  fields.known({"router_aux_loss_coef"});  // counts with router logits alone
  config.experts = fields.size("num_local_experts", kMaxExperts);
  config.experts_per_token = fields.size("num_experts_per_tok", kMaxExperts);
  if (config.experts_per_token > config.experts) {
    fields.fail(
        bad_config("'num_experts_per_tok' ({}) is more than 'num_local_experts' "
                   "({})",
                   config.experts_per_token, config.experts));
  }
}

void read_qwen2(ConfigFields& fields, TransformerConfig& config) {
  config.kv_heads = kQwenKvHeads;
  read_silu(fields, config);
  config.qkv_bias = true;
  read_qwen_window(fields, config);
}

void read_qwen3(ConfigFields& fields, TransformerConfig& config) {
  constexpr int64_t kQwen3HeadWidth = 128;
  config.head_width = kQwen3HeadWidth;
  config.kv_heads = kQwenKvHeads;
  read_silu(fields, config);
  read_attention_bias(fields, config);
  config.qk_norm = true;
  read_qwen_window(fields, config);
}

void read_gemma(ConfigFields& fields, TransformerConfig& config) {
  constexpr int64_t kGemma1KvHeads = 16;
  config.norm_eps = kLlamaNormEps;
  config.head_width = kGemmaHeadWidth;
  config.kv_heads = kGemma1KvHeads;
  read_llama_sizes(fields, config);
  read_padding(fields, /*missing=*/0, config);
  config.tied = fields.flag("tie_word_embeddings", true);
  config.gemma = config.gelu = true;
  read_attention_bias(fields, config);
  // Published files say "gelu" and mean its approximation by tanh, as transformers knows.
  fields.one_of("hidden_act", {"gelu_pytorch_tanh", "gelu"});
  fields.known({"hidden_activation"});
  fields.one_of("use_bidirectional_attention", {false});
}

void read_gemma2(ConfigFields& fields, TransformerConfig& config) {
  config.norm_eps = kLlamaNormEps;
  config.head_width = kGemmaHeadWidth;
  config.kv_heads = kGemmaKvHeads;
  read_llama_sizes(fields, config);
  read_later_gemma(fields, config, /*period=*/2);
  config.final_softcap = softcap_in(fields, "final_logit_softcapping", 30);
  config.attention_softcap = softcap_in(fields, "attn_logit_softcapping", 50);
}

// Published files leave out what is as in Hugging Face's Gemma3TextConfig.
void read_gemma3(ConfigFields& fields, TransformerConfig& config) {
  config.norm_eps = kLlamaNormEps;
  config.head_width = kGemmaHeadWidth;
  config.rotary.base = 1e6;
  config.vocabulary = fields.size("vocab_size", kMaxRows, 262208);
  config.context = fields.size("max_position_embeddings", kMaxRows, 131072);
  config.heads = fields.size("num_attention_heads", kMaxWidth, 8);
  config.kv_heads = kGemmaKvHeads;
  read_other_sizes(fields, config);
  read_layered_rotary(fields, config);
  const int64_t period = fields.size("sliding_window_pattern", kMaxLayers, 6);
  fields.known({"_sliding_window_pattern"});
  read_later_gemma(fields, config, period);
  config.final_softcap = softcap_in(fields, "final_logit_softcapping", 0);
  config.qk_norm = true;
}

void read_phi3(ConfigFields& fields, TransformerConfig& config) {
  constexpr int64_t kPhi3Padding = 32000;
  read_silu(fields, config, 1e-5, kPhi3Padding);
  require_no_biases(fields);
  config.window = window_in(fields, 0);
  config.fused_projections = true;
  if (config.rotary.kind == RotaryKind::kDefault) return;
  fields.fail(not_computed("'rope_type' of a phi3 is not \"default\""));
}

void read_olmo2(ConfigFields& fields, TransformerConfig& config) {
  read_silu(fields, config, 1e-5, /*padding=*/1);
  read_attention_bias(fields, config);
  config.norms_behind = config.qk_norm = config.whole_qk_norm = true;
}

void read_granite(ConfigFields& fields, TransformerConfig& config) {
  read_silu(fields, config);
  read_attention_bias(fields, config);
  config.mlp_bias = fields.flag("mlp_bias", false);
  config.attention_scale = fields.positive("attention_multiplier", 1);
  config.embedding_scale = fields.positive("embedding_multiplier", 1);
  config.residual_scale = fields.positive("residual_multiplier", 1);
  config.logits_divisor = fields.positive("logits_scaling", 1);
}

void read_smollm3(ConfigFields& fields, TransformerConfig& config) {
  constexpr int64_t kSmolKvHeads = 4, kSmolPadding = 128004, kUnrotatedEvery = 4;
  config.rotary.base = 2e6;
  config.kv_heads = kSmolKvHeads;
  read_silu(fields, config, kLlamaNormEps, kSmolPadding);
  config.tied = fields.flag("tie_word_embeddings", true);
  read_attention_bias(fields, config);
  config.mlp_bias = fields.flag("mlp_bias", false);
  const int64_t interval = fields.size("no_rope_layer_interval", kMaxLayers, kUnrotatedEvery);
  for (int64_t i = 0; i < config.layers; ++i) {
    config.rotated.push_back((i + 1) % std::max<int64_t>(interval, 1) != 0);
  }
  if (const nlohmann::json* const given = fields.list("no_rope_layers")) {
    if (given->size() < static_cast<size_t>(config.layers)) {
      return fields.fail(bad_config("'no_rope_layers' has {} layers, and 'num_hidden_layers' is {}",
                                    given->size(), config.layers));
    }
    for (size_t i = 0; i < config.rotated.size(); ++i) {
      const nlohmann::json& turned = (*given)[i];
      if (turned != 0 && turned != 1) {
        return fields.fail(bad_config("'no_rope_layers' has {}; it must be 0 or 1", shown(turned)));
      }
      config.rotated[i] = turned == 1;
    }
  }
  config.window = fields.flag("use_sliding_window", false) ? window_in(fields, /*missing=*/0) : 0;
  fields.known({"sliding_window", "layer_types"});
  if (config.window == 0) return;
  const std::vector<bool> rotated = config.rotated;
  read_windowed(fields, config, [&](int64_t i) { return !rotated[static_cast<size_t>(i)]; });
}

}  // namespace elixir::planner
