#include "planner/models/config_json.h"

#include <sys/stat.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/text_file.h"
#include "base/units.h"
#include "planner/json_fields.h"
#include "planner/models/config_text.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::ordered_json;

const char* torch_dtype(ComputeType type) {
  switch (type) {
    case ComputeType::kBf16:
      return "bfloat16";
    case ComputeType::kFp16:
      return "float16";
    case ComputeType::kFp32:
      break;
  }
  return "float32";
}

struct TypeNames {
  const char *model_type, *architecture;
};

// Llama's relatives, by what tells them apart.
TypeNames llama_names(const TransformerConfig& config) {
  if (config.experts > 0) return {"mixtral", "MixtralForCausalLM"};
  if (config.four_norms && config.qk_norm) return {"gemma3_text", "Gemma3ForCausalLM"};
  if (config.four_norms) return {"gemma2", "Gemma2ForCausalLM"};
  if (config.fused_projections) return {"phi3", "Phi3ForCausalLM"};
  if (config.qk_norm) return {"qwen3", "Qwen3ForCausalLM"};
  if (config.qkv_bias) return {"qwen2", "Qwen2ForCausalLM"};
  // transformers refuses a Llama whose heads do not share the width evenly, and no Mistral.
  if (config.width % config.heads != 0) return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

TypeNames names_of(const TransformerConfig& config) {
  switch (config.family) {
    case Family::kGpt2:
      return {"gpt2", "GPT2LMHeadModel"};
    case Family::kOpt:
      return {"opt", "OPTForCausalLM"};
    case Family::kLlama:
      break;
  }
  return llama_names(config);
}

void add_gpt2(const TransformerConfig& config, Json& json) {
  json["n_positions"] = config.context;
  json["n_embd"] = config.width;
  json["n_layer"] = config.layers;
  json["n_head"] = config.heads;
  json["n_inner"] = config.mlp_width;
  json["activation_function"] = "gelu_new";
  json["layer_norm_epsilon"] = config.norm_eps;
  json["scale_attn_weights"] = true;
  json["scale_attn_by_inverse_layer_idx"] = false;
  json["add_cross_attention"] = false;
}

void add_opt(const TransformerConfig& config, Json& json) {
  json["max_position_embeddings"] = config.context;
  json["hidden_size"] = config.width;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["ffn_dim"] = config.mlp_width;
  json["word_embed_proj_dim"] = config.width;
  json["activation_function"] = "relu";
  json["do_layer_norm_before"] = true;
  json["enable_bias"] = true;
  json["layer_norm_elementwise_affine"] = true;
  json["_remove_final_layer_norm"] = false;
}

void add_gemma(const TransformerConfig& config, Json& json) {
  json["hidden_activation"] = "gelu_pytorch_tanh";
  json["query_pre_attn_scalar"] = config.head_numel();
  json["attn_logit_softcapping"] = nullptr;
  json["final_logit_softcapping"] =
      config.final_softcap > 0 ? Json(config.final_softcap) : Json(nullptr);
  json["layer_types"] =
      std::vector<std::string>(static_cast<size_t>(config.layers), "full_attention");
  json["sliding_window"] = config.context;  // of layers of another type, of which there are none
}

// Files of transformers 4 have rope_theta, those of 5 have rope_parameters; each ignores the other.
void add_rotary(const TransformerConfig& config, Json& json) {
  const Json parameters = {{"rope_type", "default"}, {"rope_theta", config.rotary_base}};
  json["rope_theta"] = config.rotary_base;
  if (config.four_norms && config.qk_norm) {
    json["rope_local_base_freq"] = config.rotary_base;
    json["rope_parameters"] = {{"full_attention", parameters}, {"sliding_attention", parameters}};
  } else {
    json["rope_parameters"] = parameters;
  }
}

void add_llama(const TransformerConfig& config, Json& json) {
  json["max_position_embeddings"] = config.context;
  json["hidden_size"] = config.width;
  json["intermediate_size"] = config.mlp_width;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  if (config.head_width != 0) json["head_dim"] = config.head_width;
  json["rms_norm_eps"] = config.norm_eps;
  add_rotary(config, json);
  json["attention_bias"] = false;
  if (config.four_norms) return add_gemma(config, json);
  json["mlp_bias"] = false;
  json["hidden_act"] = config.gelu ? "gelu_pytorch_tanh" : "silu";
  json["sliding_window"] = nullptr;
  if (config.qkv_bias || config.qk_norm) json["use_sliding_window"] = false;
  if (config.fused_projections) json["original_max_position_embeddings"] = config.context;
  if (config.experts == 0) return;
  json["num_local_experts"] = config.experts;
  json["num_experts_per_tok"] = config.experts_per_token;
}

std::string text_of(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Without the spaces, which may be most of what is deeply nested.
std::string one_line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// ---- what a file asks for ----

template <typename... Args>
Status not_computed(fmt::format_string<Args...> text, Args&&... args) {
  return error(Code::kBadInput,
               "config.json: {}: Elixir's models do not compute that, so that the "
               "weights would mean something else",
               fmt::format(text, std::forward<Args>(args)...));
}

// Null: it is not given, for null counts as missing.
const nlohmann::json* given(const nlohmann::json& json, const char* field) {
  const auto found = json.find(field);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

// The field, where it is given, is one of those.
Status one_of(const nlohmann::json& json, const char* field,
              std::initializer_list<nlohmann::json> known) {
  const nlohmann::json* const found = given(json, field);
  if (found == nullptr) return {};
  if (std::find(known.begin(), known.end(), *found) != known.end()) return {};
  return not_computed("'{}' is {}", field, shown(*found));
}

Status check_rotary(const nlohmann::json& json) {
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* const found = given(json, field);
    if (found == nullptr) continue;
    if (!found->is_object()) return not_computed("'{}' is {}", field, shown(*found));
    for (const char* type : {"rope_type", "type"}) {
      const auto named = found->find(type);
      if (named == found->end() || *named == "default") continue;
      return not_computed("'{}' has the {} {}", field, type, shown(*named));
    }
    for (const auto& [name, value] : found->items()) {
      if (value.is_object()) return not_computed("'{}' has one for '{}'", field, name);
    }
    ELIXIR_RETURN_IF_ERROR(one_of(*found, "partial_rotary_factor", {1}));
  }
  return one_of(json, "partial_rotary_factor", {1});
}

Status check_llama(const nlohmann::json& json) {
  ELIXIR_RETURN_IF_ERROR(one_of(json, "hidden_act", {"silu", "swish"}));
  return check_rotary(json);
}

Status check_gpt2(const nlohmann::json& json) {
  ELIXIR_RETURN_IF_ERROR(
      one_of(json, "activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}));
  ELIXIR_RETURN_IF_ERROR(one_of(json, "scale_attn_weights", {true}));
  return one_of(json, "scale_attn_by_inverse_layer_idx", {false});
}

std::string type_in(const nlohmann::json& json) {
  const nlohmann::json* const type = given(json, "model_type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

Status check_fields(const nlohmann::json& json) {
  const std::string name = type_in(json);
  if (name == "gpt2") return check_gpt2(json);
  if (name == "opt") return one_of(json, "activation_function", {"relu"});
  for (const char* known : {"llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3"}) {
    if (name == known) return check_llama(json);
  }
  // Gemma's, of which files of models of images have the language model inside.
  const nlohmann::json* const language = given(json, "text_config");
  return check_rotary(language != nullptr && language->is_object() ? *language : json);
}

// Whether config_json() wrote it: then it is computed, whatever its type.
bool is_own(std::string_view text) {
  const Result<TransformerConfig> config = transformer_from_config_json(text);
  if (!config.ok()) return false;
  const std::string own = config_json(*config, type_of_config_json(text));
  return *parse_config(text) == nlohmann::json::parse(own);
}

}  // namespace

Result<std::string> read_config_file(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return errno_status(Code::kBadInput, path);
  if (!S_ISREG(about.st_mode) || static_cast<uint64_t>(about.st_size) > kMaxConfigBytes) {
    return error(Code::kBadInput, "{}: it must be a config.json: an ordinary file of at most {}",
                 path, format_bytes(kMaxConfigBytes));
  }
  return read_ordinary_file(path);
}

std::string config_json(const TransformerConfig& config, ComputeType type) {
  const TypeNames names = names_of(config);
  Json json = {{"_name_or_path", config.name},
               {"architectures", {names.architecture}},
               {"model_type", names.model_type},
               {"torch_dtype", torch_dtype(type)},
               {"vocab_size", config.vocabulary}};
  switch (config.family) {
    case Family::kGpt2:
      add_gpt2(config, json);
      break;
    case Family::kOpt:
      add_opt(config, json);
      break;
    case Family::kLlama:
      add_llama(config, json);
      break;
  }
  json["tie_word_embeddings"] = config.tied;
  // Nobody has given tokens a meaning; transformers' own numbers may lie beyond the vocabulary.
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) json[token] = nullptr;
  return text_of(json);
}

Result<std::string> config_json_of_type(std::string_view text, ComputeType type) {
  Result<Json> json = parse_config<Json>(text);
  if (!json.ok()) return json.status();
  (*json)["torch_dtype"] = torch_dtype(type);
  if (json->contains("dtype")) (*json)["dtype"] = torch_dtype(type);  // as transformers 5 writes it
  std::string other = text_of(*json);
  if (other.size() > kMaxConfigBytes) other = one_line_of(*json);
  if (other.size() <= kMaxConfigBytes) return other;
  return error(Code::kBadInput,
               "config.json: it would have {} bytes once written, {} are the most: leave out what "
               "is not needed",
               other.size(), kMaxConfigBytes);
}

std::optional<ComputeType> type_in_config_json(std::string_view text) {
  const Result<nlohmann::json> json = parse_config(text);
  for (const char* field : {"dtype", "torch_dtype"}) {
    if (!json.ok() || !json->contains(field)) continue;
    for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
      if ((*json)[field] == torch_dtype(type)) return type;
    }
  }
  return std::nullopt;
}

ComputeType type_of_config_json(std::string_view text) {
  return type_in_config_json(text).value_or(ComputeType::kFp32);
}

Status check_computed(std::string_view text) {
  if (is_own(text)) return {};
  const Result<nlohmann::json> json = parse_config(text);
  if (!json.ok()) return json.status();
  const std::string name = type_in(*json);
  for (const char* known : {"gpt2", "opt", "llama", "mistral", "qwen2", "qwen3"}) {
    if (name == known) return check_fields(*json);
  }
  const nlohmann::json* const type = given(*json, "model_type");
  return error(Code::kBadInput,
               "config.json: 'model_type' is {}; weights are taken of gpt2, opt, llama, mistral, "
               "qwen2 and qwen3",
               type == nullptr ? "missing" : shown(*type));
}

Status check_fields_computed(std::string_view text) {
  const Result<nlohmann::json> json = parse_config(text);
  return json.ok() ? check_fields(*json) : json.status();
}

}  // namespace elixir::planner
