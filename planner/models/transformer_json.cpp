// transformer_from_config_json of planner/models/transformer_config.h.

#include <nlohmann/json.hpp>

#include "planner/models/transformer_config.h"
#include "planner/shown_json.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

// Beyond these no model is; within them the number of elements fits 63 bits:
// layers * (4 width^2 + 3 width * mlp_width) < 2^59.
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxMlpWidth = int64_t{1} << 24;
constexpr int64_t kMaxRows = int64_t{1} << 28;  // of an embedding

// Reads fields of one object; keeps the first thing that is wrong.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  const Status& status() const { return status_; }

  bool given(const char* field) const {
    const auto found = object_.find(field);
    return found != object_.end() && !found->is_null();
  }

  // A whole number from 1 to `most`; 0 when it is missing or wrong.
  int64_t size(const char* field, int64_t most) {
    if (!given(field)) {
      fail(error(Code::kBadInput,
                 "config.json: '{}' is missing; it must be a whole number, 1 to {}", field, most));
      return 0;
    }
    const json& value = object_[field];
    const bool in_range = value.is_number_unsigned() && value.get<uint64_t>() >= 1 &&
                          value.get<uint64_t>() <= static_cast<uint64_t>(most);
    if (!in_range) {
      fail(error(Code::kBadInput, "config.json: '{}' is {}; it must be a whole number, 1 to {}",
                 field, shown(value), most));
      return 0;
    }
    return value.get<int64_t>();
  }

  int64_t size(const char* field, int64_t most, int64_t missing) {
    return given(field) ? size(field, most) : missing;
  }

  bool flag(const char* field, bool missing) {
    if (!given(field)) return missing;
    const json& value = object_[field];
    if (value.is_boolean()) return value.get<bool>();
    fail(error(Code::kBadInput, "config.json: '{}' is {}; it must be true or false", field,
               shown(value)));
    return missing;
  }

  // A variant of the family whose parameters are others than those listed here.
  void require_flag(const char* field, bool wanted) {
    if (flag(field, wanted) == wanted) return;
    fail(error(Code::kBadInput,
               "config.json: '{}' is {}; only {} is known. Take the sizes from the model's file "
               "(--safetensors), or its number of parameters (--params)",
               field, !wanted, wanted));
  }

  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
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
        error(Code::kBadInput,
              "config.json: 'word_embed_proj_dim' is not 'hidden_size' ({}): embeddings with "
              "a projection are not known; use --safetensors or --params",
              config.width));
  }
}

// Llama and Mistral: equal parameters.
void read_llama(Fields& fields, TransformerConfig& config) {
  config.family = Family::kLlama;
  config.vocabulary = fields.size("vocab_size", kMaxRows);
  config.context = fields.size("max_position_embeddings", kMaxRows);
  config.width = fields.size("hidden_size", kMaxWidth);
  config.layers = fields.size("num_hidden_layers", kMaxLayers);
  config.heads = fields.size("num_attention_heads", kMaxWidth);
  config.kv_heads = fields.size("num_key_value_heads", kMaxWidth, config.heads);
  config.mlp_width = fields.size("intermediate_size", kMaxMlpWidth);
  config.tied = fields.flag("tie_word_embeddings", false);
  for (const char* field : {"attention_bias", "mlp_bias"}) fields.require_flag(field, false);
  if (fields.given("head_dim") &&
      fields.size("head_dim", kMaxWidth) * config.heads != config.width) {
    fields.fail(error(Code::kBadInput,
                      "config.json: 'head_dim' times 'num_attention_heads' ({}) is not "
                      "'hidden_size' ({}): that is not known; use --safetensors or --params",
                      config.heads, config.width));
  }
}

struct KnownType {
  const char* name;
  void (*read)(Fields&, TransformerConfig&);
};

constexpr KnownType kTypes[] = {
    {"gpt2", read_gpt2}, {"opt", read_opt}, {"llama", read_llama}, {"mistral", read_llama}};

Status check_heads(const TransformerConfig& config) {
  if (config.width % config.heads != 0) {
    return error(Code::kBadInput, "config.json: {} attention heads do not divide a width of {}",
                 config.heads, config.width);
  }
  if (config.heads % config.kv_heads != 0) {
    return error(Code::kBadInput,
                 "config.json: 'num_key_value_heads' ({}) does not divide {} heads",
                 config.kv_heads, config.heads);
  }
  return Status();
}

}  // namespace

Result<TransformerConfig> transformer_from_config_json(std::string_view text) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return error(Code::kBadInput,
                 "config.json: not a JSON object; it must be the config.json of a "
                 "Hugging Face model");
  }
  const auto type = object.find("model_type");
  const std::string type_name =
      type != object.end() && type->is_string() ? type->get<std::string>() : "";
  for (const KnownType& known : kTypes) {
    if (type_name != known.name) continue;
    TransformerConfig config;
    const auto path = object.find("_name_or_path");
    const bool named = path != object.end() && path->is_string() && *path != "";
    config.name = named ? path->get<std::string>() : type_name;
    Fields fields(object);
    known.read(fields, config);
    ELIXIR_RETURN_IF_ERROR(fields.status());
    ELIXIR_RETURN_IF_ERROR(check_heads(config));
    return config;
  }
  return error(Code::kBadInput,
               "config.json: 'model_type' is {}; known: gpt2, opt, llama, mistral. For others use "
               "--safetensors or --params",
               type == object.end() ? "missing" : shown(*type));
}

}  // namespace elixir::planner
