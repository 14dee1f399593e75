// transformer_from_config_json of planner/models/transformer_config.h.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "planner/json_fields.h"
#include "planner/models/config_text.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

// Beyond these no model is; within them the number of elements fits 63 bits:
// layers * (4 width * all heads' + 3 width * all MLPs') < 2^60.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxMlpWidth = int64_t{1} << 24;
constexpr int64_t kMaxRows = int64_t{1} << 28;  // of an embedding
constexpr int64_t kMaxHeadWidth = int64_t{1} << 14;
constexpr int64_t kMaxExperts = int64_t{1} << 12;
constexpr int64_t kMaxHeadsWidth = int64_t{1} << 22;    // all heads together
constexpr int64_t kMaxExpertsWidth = int64_t{1} << 26;  // all experts together

template <typename... Args>
Status bad(fmt::format_string<Args...> text, Args&&... args) {
  return Status(Code::kBadInput, "config.json: " + fmt::format(text, std::forward<Args>(args)...));
}

// Reads fields of one object; keeps the first thing that is wrong.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  const Status& status() const { return status_; }

  bool has(const char* field) const { return object_.contains(field); }
  bool given(const char* field) const {
    const auto found = object_.find(field);
    return found != object_.end() && !found->is_null();
  }

  // A whole number from 1 to `most`; 0 when it is missing or wrong.
  int64_t size(const char* field, int64_t most) {
    const json value = given(field) ? object_[field] : json();
    const uint64_t whole = value.is_number_unsigned() ? value.get<uint64_t>() : 0;
    if (whole >= 1 && whole <= static_cast<uint64_t>(most)) return value.get<int64_t>();
    fail(bad("'{}' is {}; it must be a whole number, 1 to {}", field,
             value.is_null() ? "missing" : shown(value), most));
    return 0;
  }

  int64_t size(const char* field, int64_t most, int64_t missing) {
    return given(field) ? size(field, most) : missing;
  }

  // A finite number of 0 or more.
  double number(const char* field, double missing) {
    if (!given(field)) return missing;
    const json& value = object_[field];
    const double real = value.is_number() ? value.get<double>() : -1;
    if (real >= 0 && real < 1e300) return real;
    fail(bad("'{}' is {}; it must be a number of 0 or more", field, shown(value)));
    return missing;
  }

  // The field itself, or as files have it that transformers 5 wrote, which reads 'rope_scaling' as
  // 'rope_parameters' and lets what is inside win. Where two differ nobody knows which was meant.
  double rotary_base(double missing) {
    double base = number("rope_theta", missing);
    bool found = given("rope_theta");
    for (const char* field : {"rope_parameters", "rope_scaling"}) {
      if (!given(field) || !object_[field].is_object()) continue;
      Fields inner(object_[field]);
      if (!inner.given("rope_theta")) continue;
      const double other = inner.number("rope_theta", missing);
      fail(inner.status());
      if (found && other != base) {
        fail(bad("'rope_theta' is {}, and that in '{}' {}; make them equal", base, field, other));
      }
      base = other;
      found = true;
    }
    return base;
  }

  // Whether a layer sees the last tokens alone, of types whose first 'max_window_layers' see all.
  bool any_layer_windowed(int64_t layers) {
    constexpr double kQwenWindowLayers = 28;
    if (!given("layer_types")) {
      return static_cast<double>(layers) > number("max_window_layers", kQwenWindowLayers);
    }
    const json& types = object_["layer_types"];
    return std::find(types.begin(), types.end(), "sliding_attention") != types.end();
  }

  bool flag(const char* field, bool missing) {
    if (!given(field)) return missing;
    const json& value = object_[field];
    if (value.is_boolean()) return value.get<bool>();
    fail(bad("'{}' is {}; it must be true or false", field, shown(value)));
    return missing;
  }

  // A variant of the family whose parameters are others than those listed here.
  void require_flag(const char* field, bool wanted) {
    if (flag(field, wanted) == wanted) return;
    fail(
        bad("'{}' is {}; only {} is known. Take the sizes from the model's file "
            "(--safetensors), or its number of parameters (--params)",
            field, !wanted, wanted));
  }

  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);  // one that is ok changes nothing
  }

 private:
  const json& object_;
  Status status_;
};

void read_gpt2(Fields& fields, TransformerConfig& config) {
  config.family = Family::kGpt2;
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("n_positions", kMaxRows);
  config.width = fields.size("n_embd", kMaxWidth);
  config.layers = fields.size("n_layer", kMaxLayers);
  config.heads = fields.size("n_head", kMaxWidth);
  config.kv_heads = config.heads;
  config.mlp_width = fields.size("n_inner", kMaxMlpWidth, 4 * config.width);
  config.tied = fields.flag("tie_word_embeddings", true);
  config.norm_eps = fields.number("layer_norm_epsilon", config.norm_eps);
  fields.require_flag("add_cross_attention", false);
}

void read_opt(Fields& fields, TransformerConfig& config) {
  config.family = Family::kOpt;
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("max_position_embeddings", kMaxRows);
  config.width = fields.size("hidden_size", kMaxWidth);
  config.layers = fields.size("num_hidden_layers", kMaxLayers);
  config.heads = fields.size("num_attention_heads", kMaxWidth);
  config.kv_heads = config.heads;
  config.mlp_width = fields.size("ffn_dim", kMaxMlpWidth);
  config.tied = fields.flag("tie_word_embeddings", true);
  for (const char* field :
       {"do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"}) {
    fields.require_flag(field, true);
  }
  fields.require_flag("_remove_final_layer_norm", false);
  if (fields.size("word_embed_proj_dim", kMaxWidth, config.width) != config.width) {
    fields.fail(
        bad("'word_embed_proj_dim' is not 'hidden_size' ({}): embeddings with "
            "a projection are not known; use --safetensors or --params",
            config.width));
  }
}

// Hugging Face's, of most types, where a file leaves it out.
constexpr double kLlamaNormEps = 1e-6;

// But for those that Gemma 3's files may leave out.
void read_other_sizes(Fields& fields, TransformerConfig& config) {
  config.width = fields.size("hidden_size", kMaxWidth);
  config.layers = fields.size("num_hidden_layers", kMaxLayers);
  config.kv_heads = fields.size("num_key_value_heads", kMaxWidth,
                                config.kv_heads != 0 ? config.kv_heads : config.heads);
  config.mlp_width = fields.size("intermediate_size", kMaxMlpWidth);
  config.head_width = fields.size("head_dim", kMaxHeadWidth, 0);
  config.rotary_base = fields.rotary_base(config.rotary_base);
  config.norm_eps = fields.number("rms_norm_eps", config.norm_eps);
}

// What Llama, Mistral and the others have in common.
void read_llama_sizes(Fields& fields, TransformerConfig& config, double norm_eps = kLlamaNormEps) {
  config.family = Family::kLlama;
  config.norm_eps = norm_eps;
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("max_position_embeddings", kMaxRows);
  config.heads = fields.size("num_attention_heads", kMaxWidth);
  read_other_sizes(fields, config);
}

void read_llama(Fields& fields, TransformerConfig& config, double norm_eps) {
  read_llama_sizes(fields, config, norm_eps);
  config.tied = fields.flag("tie_word_embeddings", false);
  for (const char* field : {"attention_bias", "mlp_bias"}) fields.require_flag(field, false);
}

void read_llama(Fields& fields, TransformerConfig& config) {
  read_llama(fields, config, kLlamaNormEps);
}

// A file that does not have the field means Hugging Face's window, one that has null means none.
void read_mistral(Fields& fields, TransformerConfig& config) {
  constexpr int64_t kMistralWindow = 4096;
  read_llama(fields, config);
  config.window = fields.has("sliding_window")
                      ? fields.size("sliding_window", kMaxRows, /*missing=*/0)
                      : kMistralWindow;
}

// Some layers see all, others see the last tokens alone.
void read_qwen_window(Fields& fields, TransformerConfig& config) {
  if (!fields.flag("use_sliding_window", false)) return;
  if (!fields.any_layer_windowed(config.layers)) return;
  config.window = fields.size("sliding_window", kMaxRows, /*missing=*/0);
}

void read_mixtral(Fields& fields, TransformerConfig& config) {
  config.rotary_base = 1e6;
  read_llama(fields, config, 1e-5);
  config.experts = fields.size("num_local_experts", kMaxExperts);
  config.experts_per_token = fields.size("num_experts_per_tok", kMaxExperts);
  if (config.experts_per_token > config.experts) {
    fields.fail(
        bad("'num_experts_per_tok' ({}) is more than 'num_local_experts' "
            "({})",
            config.experts_per_token, config.experts));
  }
}

void read_qwen2(Fields& fields, TransformerConfig& config) {
  read_llama_sizes(fields, config);
  config.tied = fields.flag("tie_word_embeddings", false);
  config.qkv_bias = true;
  read_qwen_window(fields, config);
}

void read_qwen3(Fields& fields, TransformerConfig& config) {
  constexpr int64_t kQwen3HeadWidth = 128;
  read_llama(fields, config);
  if (config.head_width == 0) config.head_width = kQwen3HeadWidth;
  config.qk_norm = true;
  read_qwen_window(fields, config);
}

void read_gemma(Fields& fields, TransformerConfig& config) {
  constexpr int64_t kGemmaHeadWidth = 256;
  fields.require_flag("attention_bias", false);
  config.tied = fields.flag("tie_word_embeddings", true);
  if (config.head_width == 0) config.head_width = kGemmaHeadWidth;
  config.four_norms = config.gelu = true;
  config.final_softcap = fields.number("final_logit_softcapping", 0);
}

void read_gemma2(Fields& fields, TransformerConfig& config) {
  read_llama_sizes(fields, config);
  read_gemma(fields, config);
}

// Published files leave out what is as in Hugging Face's Gemma3TextConfig.
void read_gemma3(Fields& fields, TransformerConfig& config) {
  config.family = Family::kLlama;
  config.norm_eps = kLlamaNormEps;
  config.vocabulary = fields.size("vocab_size", kMaxRows, 262208);
  config.context = fields.size("max_position_embeddings", kMaxRows, 131072);
  config.heads = fields.size("num_attention_heads", kMaxWidth, 8);
  config.kv_heads = 4;
  read_other_sizes(fields, config);
  read_gemma(fields, config);
  config.qk_norm = true;
}

void read_phi3(Fields& fields, TransformerConfig& config) {
  read_llama_sizes(fields, config, 1e-5);
  config.tied = fields.flag("tie_word_embeddings", false);
  config.fused_projections = true;
}

struct KnownType {
  const char* name;
  void (*read)(Fields&, TransformerConfig&);
};

constexpr KnownType kTypes[] = {
    {"gpt2", read_gpt2},       {"opt", read_opt},         {"llama", read_llama},
    {"mistral", read_mistral}, {"mixtral", read_mixtral}, {"qwen2", read_qwen2},
    {"qwen3", read_qwen3},     {"gemma2", read_gemma2},   {"gemma3_text", read_gemma3},
    {"gemma3", read_gemma3},   {"phi3", read_phi3},
};

std::string known_types() {
  std::string all;
  for (const KnownType& known : kTypes) all += (all.empty() ? "" : ", ") + std::string(known.name);
  return all;
}

Status check_heads(const TransformerConfig& config) {
  if (config.head_width == 0 && config.width % config.heads != 0) {
    return bad("{} attention heads do not divide a width of {}", config.heads, config.width);
  }
  if (config.family == Family::kLlama && config.head_numel() % 2 != 0) {
    return bad(
        "heads have a width of {} ('head_dim'); rotary positions turn pairs, "
        "so that it must be even",
        config.head_numel());
  }
  if (config.head_numel() * config.heads > kMaxHeadsWidth) {
    return bad("'head_dim' times 'num_attention_heads' is {}; at most {} is known",
               config.head_numel() * config.heads, kMaxHeadsWidth);
  }
  if (config.experts * config.mlp_width > kMaxExpertsWidth) {
    return bad(
        "'num_local_experts' times 'intermediate_size' is {}; at most {} is "
        "known",
        config.experts * config.mlp_width, kMaxExpertsWidth);
  }
  if (config.heads % config.kv_heads != 0) {
    return bad("'num_key_value_heads' ({}) does not divide {} heads", config.kv_heads,
               config.heads);
  }
  return Status();
}

// Weights stored in fewer bits are of other sizes, and not trained as they are.
Status check_not_quantized(const json& object) {
  const auto found = object.find("quantization_config");
  if (found == object.end() || found->is_null()) return Status();
  return bad(
      "'quantization_config' is given; only models in 16 or 32 bits are "
      "known. Without the field it is the same model in 16 bits");
}

}  // namespace

Result<TransformerConfig> transformer_from_config_json(std::string_view text) {
  const Result<json> parsed = parse_config(text);
  if (!parsed.ok()) return parsed.status();
  const json& object = *parsed;
  const auto type = object.find("model_type");
  const std::string type_name =
      type != object.end() && type->is_string() ? type->get<std::string>() : "";
  for (const KnownType& known : kTypes) {
    if (type_name != known.name) continue;
    TransformerConfig config;
    const auto path = object.find("_name_or_path");
    const bool named = path != object.end() && path->is_string() && *path != "";
    config.name = named ? path->get<std::string>() : type_name;
    // A model of images, too: of its language model.
    const auto language = object.find("text_config");
    const bool nested = language != object.end() && language->is_object();
    Fields fields(nested ? *language : object);
    known.read(fields, config);
    ELIXIR_RETURN_IF_ERROR(fields.status());
    ELIXIR_RETURN_IF_ERROR(check_heads(config));
    ELIXIR_RETURN_IF_ERROR(check_not_quantized(object));
    return config;
  }
  return bad(
      "'model_type' is {}; known: {}. For others use --safetensors or "
      "--params",
      type == object.end() ? "missing" : shown(*type), known_types());
}

}  // namespace elixir::planner
