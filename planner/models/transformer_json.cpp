// transformer_from_config_json of planner/models/transformer_config.h.

#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"
#include "planner/json_fields.h"
#include "planner/models/config_fields.h"
#include "planner/models/config_text.h"
#include "planner/models/family_json.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

void read_gpt2(ConfigFields& fields, TransformerConfig& config) {
  config.family = Family::kGpt2;
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("n_positions", kMaxRows);
  config.width = fields.size("n_embd", kMaxWidth);
  config.layers = fields.size("n_layer", kMaxLayers);
  config.heads = fields.size("n_head", kMaxWidth);
  config.kv_heads = config.heads;
  config.mlp_width = fields.size("n_inner", kMaxMlpWidth, 4 * config.width);
  if (!fields.flag("tie_word_embeddings", true)) {
    fields.fail(not_computed("'tie_word_embeddings' of a gpt2 is false"));
  }
  config.norm_eps = fields.number("layer_norm_epsilon", config.norm_eps);
  read_deviation(fields, "initializer_range", config);
  fields.require_flag("add_cross_attention", false);
  fields.one_of("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  fields.one_of("scale_attn_weights", {true});
  fields.one_of("scale_attn_by_inverse_layer_idx", {false});
  // Of its heads for classes; its embedding has no padding.
  fields.known({"n_ctx", "pad_token_id", "predict_special_tokens", "summary_activation",
                "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                "summary_use_proj"});
}

void read_opt(ConfigFields& fields, TransformerConfig& config) {
  config.family = Family::kOpt;
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("max_position_embeddings", kMaxRows);
  config.width = fields.size("hidden_size", kMaxWidth);
  config.layers = fields.size("num_hidden_layers", kMaxLayers);
  config.heads = fields.size("num_attention_heads", kMaxWidth);
  config.kv_heads = config.heads;
  config.mlp_width = fields.size("ffn_dim", kMaxMlpWidth);
  config.tied = fields.flag("tie_word_embeddings", true);
  read_deviation(fields, "init_std", config);
  read_padding(fields, /*missing=*/1, config);
  fields.one_of("activation_function", {"relu"});
  for (const char* field :
       {"do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"}) {
    fields.require_flag(field, true);
  }
  fields.require_flag("_remove_final_layer_norm", false);
  if (fields.size("word_embed_proj_dim", kMaxWidth, config.width) != config.width) {
    fields.fail(
        bad_config("'word_embed_proj_dim' is not 'hidden_size' ({}): embeddings with "
                   "a projection are not known. {}",
                   config.width, kCountedBy));
  }
}

struct KnownType {
  const char* name;
  void (*read)(ConfigFields&, TransformerConfig&);
};

constexpr KnownType kTypes[] = {
    {"gpt2", read_gpt2},       {"opt", read_opt},         {"llama", read_llama},
    {"mistral", read_mistral}, {"mixtral", read_mixtral}, {"qwen2", read_qwen2},
    {"qwen3", read_qwen3},     {"gemma2", read_gemma2},   {"gemma3_text", read_gemma3},
    {"gemma3", read_gemma3},   {"phi3", read_phi3},       {"gemma", read_gemma},
    {"olmo2", read_olmo2},     {"smollm3", read_smollm3}, {"granite", read_granite},
    {"gpt_neox", read_neox},   {"phi", read_phi},
};

std::string known_types() {
  std::string all;
  for (const KnownType& known : kTypes) all += (all.empty() ? "" : ", ") + std::string(known.name);
  return all;
}

Status check_heads(const TransformerConfig& config) {
  if (config.head_width == 0 && config.width % config.heads != 0) {
    return bad_config("{} attention heads do not divide a width of {}", config.heads, config.width);
  }
  const bool rotary = config.family != Family::kGpt2 && config.family != Family::kOpt;
  if (rotary && (config.rotated_numel() % 2 != 0 || config.rotated_numel() == 0)) {
    return bad_config(
        "heads have a width of {} ('head_dim'), of which rotary positions turn {}: they turn "
        "pairs, "
        "so this must be even and more than 0",
        config.head_numel(), config.rotated_numel());
  }
  if (config.head_numel() * config.heads > kMaxHeadsWidth) {
    return bad_config("'head_dim' times 'num_attention_heads' is {}; at most {} is known",
                      config.head_numel() * config.heads, kMaxHeadsWidth);
  }
  if (config.experts * config.mlp_width > kMaxExpertsWidth) {
    return bad_config(
        "'num_local_experts' times 'intermediate_size' is {}; at most {} is "
        "known",
        config.experts * config.mlp_width, kMaxExpertsWidth);
  }
  if (config.heads % config.kv_heads != 0) {
    return bad_config("'num_key_value_heads' ({}) does not divide {} heads", config.kv_heads,
                      config.heads);
  }
  return Status();
}

struct ReadFile {
  TransformerConfig config;
  std::vector<std::string> unused;
  Status refused;  // the sizes are what the file says nonetheless, 0 where it says none
};

// Weights stored in fewer bits are of other sizes, and not trained as they are.
void require_no_quantization(ConfigFields& fields) {
  constexpr const char* kField = "quantization_config";
  if (!fields.given(kField)) return;
  fields.fail(
      bad_config("{} is given; only models in 16 or 32 bits are known: give the folder of the "
                 "model in 16 bits",
                 fields.quoted(kField)));
}

ReadFile read_as(const KnownType& known, const json& object) {
  ConfigFields fields(object);
  require_no_quantization(fields);
  ReadFile file;
  const std::string path = printable(fields.text("_name_or_path"));
  file.config.name = path.empty() ? known.name : path;
  // A model of images, too: of its language model.
  const auto language = object.find("text_config");
  if (language != object.end() && language->is_object()) {
    fields.known({"text_config"});
    ConfigFields inner(*language, "text_config.");
    require_no_quantization(inner);
    known.read(inner, file.config);
    fields.adopt(inner);
  } else {
    known.read(fields, file.config);
  }
  file.refused = fields.status();
  if (file.refused.ok()) file.refused = check_heads(file.config);
  if (file.refused.ok()) file.unused = fields.unused();
  return file;
}

// Null for a type that is not known.
const KnownType* type_of(const json& object) {
  const auto type = object.find("model_type");
  for (const KnownType& known : kTypes) {
    if (type != object.end() && *type == known.name) return &known;
  }
  return nullptr;
}

Result<ReadFile> read_file(std::string_view text) {
  const Result<json> parsed = parse_config(text);
  if (!parsed.ok()) return parsed.status();
  if (const KnownType* const known = type_of(*parsed)) return read_as(*known, *parsed);
  const auto type = parsed->find("model_type");
  return bad_config("'model_type' is {}; known: {}. {}",
                    type == parsed->end() ? "missing" : shown(*type), known_types(), kCountedBy);
}

}  // namespace

void read_deviation(ConfigFields& fields, const char* field, TransformerConfig& config) {
  config.init_deviation = fields.positive(field, config.init_deviation);
}

void read_padding(ConfigFields& fields, int64_t missing, TransformerConfig& config) {
  constexpr const char* kField = "pad_token_id";
  if (!fields.has(kField)) {
    config.padding_token = missing < config.vocabulary ? missing : -1;
    return;
  }
  if (!fields.given(kField)) return;  // null: none
  const int64_t token = fields.whole(kField);
  if (token < -config.vocabulary || token >= config.vocabulary) {
    fields.fail(
        bad_config("'{}' is {}; the vocabulary has {} tokens", kField, token, config.vocabulary));
  }
  config.padding_token = token < 0 ? token + config.vocabulary : token;
}

Result<TransformerConfig> transformer_from_config_json(std::string_view text) {
  Result<ReadFile> file = read_file(text);
  if (!file.ok()) return file.status();
  ELIXIR_RETURN_IF_ERROR(file->refused);
  return std::move(file->config);
}

std::optional<TransformerConfig> sizes_of_refused_config(std::string_view text) {
  Result<ReadFile> file = read_file(text);
  if (!file.ok()) return std::nullopt;
  const TransformerConfig& config = file->config;
  for (const int64_t size : {config.vocabulary, config.context, config.width, config.layers,
                             config.heads, config.kv_heads, config.mlp_width}) {
    if (size <= 0) return std::nullopt;
  }
  if (!check_heads(config).ok()) return std::nullopt;
  return std::move(file->config);
}

bool has_known_model_type(std::string_view text) {
  const Result<json> parsed = parse_config(text);
  return parsed.ok() && type_of(*parsed) != nullptr;
}

std::vector<std::string> unused_config_fields(std::string_view text) {
  Result<ReadFile> file = read_file(text);
  return file.ok() ? std::move(file->unused) : std::vector<std::string>();
}

}  // namespace elixir::planner
