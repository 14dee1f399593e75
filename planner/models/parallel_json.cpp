// GPT-NeoX and Phi, whose attention and MLP run side by side, for planner/models/family_json.h.

#include "planner/models/family_json.h"
#include "planner/models/rotary_json.h"

namespace elixir::planner {
namespace {

void read_sizes(ConfigFields& fields, TransformerConfig& config) {
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("max_position_embeddings", kMaxRows);
  config.width = fields.size("hidden_size", kMaxWidth);
  config.layers = fields.size("num_hidden_layers", kMaxLayers);
  config.heads = config.kv_heads = fields.size("num_attention_heads", kMaxWidth);
  config.mlp_width = fields.size("intermediate_size", kMaxMlpWidth);
  config.norm_eps = fields.number("layer_norm_eps", config.norm_eps);
  config.tied = fields.flag("tie_word_embeddings", false);
  config.qkv_bias = true;
  read_deviation(fields, "initializer_range", config);
}

void read_gelu(ConfigFields& fields, bool exact, TransformerConfig& config) {
  constexpr const char* kField = "hidden_act";
  fields.one_of(kField, {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"});
  config.exact_gelu = fields.given(kField) ? fields.text(kField) == "gelu" : exact;
}

}  // namespace

void read_neox(ConfigFields& fields, TransformerConfig& config) {
  config.family = Family::kNeoX;
  read_sizes(fields, config);
  read_gelu(fields, /*exact=*/true, config);
  config.rotary.share = 0.25;
  read_rotary(fields, config, kNeoXRotary);
  read_padding(fields, /*missing=*/-1, config);
  config.padding_token = -1;  // its embedding has none
  config.qkv_bias = fields.flag("attention_bias", true);
  config.parallel = fields.flag("use_parallel_residual", true);
  fields.known({"classifier_dropout", "is_decoder"});
}

void read_phi(ConfigFields& fields, TransformerConfig& config) {
  config.family = Family::kPhi;
  read_sizes(fields, config);
  config.kv_heads = fields.size("num_key_value_heads", kMaxWidth, config.heads);
  read_gelu(fields, /*exact=*/false, config);
  config.rotary.share = 0.5;
  read_rotary(fields, config);
  read_padding(fields, /*missing=*/-1, config);
  fields.one_of("qk_layernorm", {false});
}

}  // namespace elixir::planner
