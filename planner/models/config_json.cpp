#include "planner/models/config_json.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/text_file.h"
#include "base/units.h"
#include "planner/json_fields.h"
#include "planner/models/config_text.h"
#include "planner/models/rotary_json.h"

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
  const bool qwen2 = config.qkv_bias && !config.o_bias;
  if (config.experts > 0) return {"mixtral", "MixtralForCausalLM"};
  if (config.norms_behind) return {"olmo2", "Olmo2ForCausalLM"};
  if (!config.rotated.empty()) return {"smollm3", "SmolLM3ForCausalLM"};
  if (config.logits_divisor > 0) return {"granite", "GraniteForCausalLM"};
  if (config.gemma && !config.four_norms) return {"gemma", "GemmaForCausalLM"};
  if (config.four_norms && config.qk_norm) return {"gemma3_text", "Gemma3ForCausalLM"};
  if (config.four_norms) return {"gemma2", "Gemma2ForCausalLM"};
  if (config.fused_projections) return {"phi3", "Phi3ForCausalLM"};
  if (config.qk_norm) return {"qwen3", "Qwen3ForCausalLM"};
  if (qwen2) return {"qwen2", "Qwen2ForCausalLM"};
  // transformers refuses a Llama whose heads do not share the width evenly, and no Mistral. A Llama
  // has no window.
  if (config.width % config.heads != 0 || config.window > 0)
    return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

TypeNames names_of(const TransformerConfig& config) {
  switch (config.family) {
    case Family::kGpt2:
      return {"gpt2", "GPT2LMHeadModel"};
    case Family::kOpt:
      return {"opt", "OPTForCausalLM"};
    case Family::kNeoX:
      return {"gpt_neox", "GPTNeoXForCausalLM"};
    case Family::kPhi:
      return {"phi", "PhiForCausalLM"};
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

std::vector<std::string> layer_types(const TransformerConfig& config) {
  std::vector<std::string> types;
  for (int64_t i = 0; i < config.layers; ++i) {
    types.emplace_back(config.has_window(i) ? "sliding_attention" : "full_attention");
  }
  return types;
}

Json cap_or_none(double cap) { return cap > 0 ? Json(cap) : Json(nullptr); }

void add_gemma(const TransformerConfig& config, Json& json) {
  json["hidden_activation"] = "gelu_pytorch_tanh";
  json["query_pre_attn_scalar"] =
      config.query_scalar > 0 ? Json(config.query_scalar) : Json(config.head_numel());
  json["attn_logit_softcapping"] = cap_or_none(config.attention_softcap);
  json["final_logit_softcapping"] = cap_or_none(config.final_softcap);
  json["layer_types"] = layer_types(config);
  json["sliding_window"] = config.window > 0 ? config.window : config.context;
}

void add_window(const TransformerConfig& config, Json& json) {
  json["sliding_window"] = config.window > 0 ? Json(config.window) : Json(nullptr);
  const bool qwen = (config.qkv_bias && !config.o_bias) || (config.qk_norm && !config.norms_behind);
  if (!qwen && config.rotated.empty()) return;
  json["use_sliding_window"] = config.window > 0;
  if (config.window > 0) json["layer_types"] = layer_types(config);
}

void add_granite(const TransformerConfig& config, Json& json) {
  json["attention_multiplier"] = config.attention_scale;
  json["embedding_multiplier"] = config.embedding_scale;
  json["residual_multiplier"] = config.residual_scale;
  json["logits_scaling"] = config.logits_divisor;
}

// In a file the context is the one before dynamic scaling.
int64_t stored_context(const TransformerConfig& config) {
  const bool dynamic = config.rotary.kind == RotaryKind::kDynamic;
  return dynamic ? config.rotary.original_context : config.context;
}

void add_sizes(const TransformerConfig& config, Json& json) {
  json["max_position_embeddings"] = stored_context(config);
  json["hidden_size"] = config.width;
  json["intermediate_size"] = config.mlp_width;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
}

void add_parallel(const TransformerConfig& config, Json& json) {
  add_sizes(config, json);
  json["layer_norm_eps"] = config.norm_eps;
  json["hidden_act"] = config.exact_gelu ? "gelu" : "gelu_new";
  if (config.family == Family::kPhi) {
    json["num_key_value_heads"] = config.kv_heads;
    return write_rotary(config, json);
  }
  write_rotary(config, json, kNeoXRotary);
  json["attention_bias"] = config.qkv_bias;
  json["use_parallel_residual"] = config.parallel;
}

void add_llama(const TransformerConfig& config, Json& json) {
  add_sizes(config, json);
  json["num_key_value_heads"] = config.kv_heads;
  if (config.head_width != 0) json["head_dim"] = config.head_width;
  json["rms_norm_eps"] = config.norm_eps;
  write_rotary(config, json);
  json["attention_bias"] = config.qkv_bias && config.o_bias;
  if (config.four_norms) return add_gemma(config, json);
  const bool no_biases = config.gemma || config.norms_behind;
  if (!no_biases) json["mlp_bias"] = config.mlp_bias;
  json["hidden_act"] = config.gelu ? "gelu_pytorch_tanh" : "silu";
  if (config.logits_divisor > 0) return add_granite(config, json);
  if (no_biases) return;
  add_window(config, json);
  for (const bool rotated : config.rotated) json["no_rope_layers"].push_back(rotated ? 1 : 0);
  if (config.fused_projections) json["original_max_position_embeddings"] = config.context;
  if (config.experts == 0) return;
  json["num_local_experts"] = config.experts;
  json["num_experts_per_tok"] = config.experts_per_token;
}

// Only where it is not transformers' own.
void add_deviation(const TransformerConfig& config, Json& json) {
  if (config.init_deviation == TransformerConfig().init_deviation) return;
  json[config.family == Family::kOpt ? "init_std" : "initializer_range"] = config.init_deviation;
}

std::string text_of(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Without the spaces, which may be most of what is deeply nested.
std::string one_line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// ---- what a file asks for ----

// Null: it is not given, for null counts as missing.
const nlohmann::json* given(const nlohmann::json& json, const char* field) {
  const auto found = json.find(field);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

std::string type_in(const nlohmann::json& json) {
  const nlohmann::json* const type = given(json, "model_type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

// Whether config_json() wrote it: then it is computed, whatever its type.
bool is_own(std::string_view text) {
  const Result<TransformerConfig> config = transformer_from_config_json(text);
  if (!config.ok()) return false;
  const std::string own = config_json(*config, type_of_config_json(text));
  return *parse_config(text) == nlohmann::json::parse(own);
}

}  // namespace

std::string config_path(const std::string& path) {
  struct stat about {};
  const bool folder = ::stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
  return folder ? path + "/config.json" : path;
}

Result<std::string> read_config_file(const std::string& given_path) {
  const std::string path = config_path(given_path);
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
    case Family::kNeoX:
    case Family::kPhi:
      add_parallel(config, json);
      break;
  }
  json["tie_word_embeddings"] = config.tied;
  add_deviation(config, json);
  // Nobody has given tokens a meaning; transformers' own numbers may lie beyond the vocabulary.
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) json[token] = nullptr;
  if (config.padding_token >= 0) json["pad_token_id"] = config.padding_token;
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
  for (const char* known : {"gpt2", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2",
                            "gemma3_text", "olmo2", "smollm3", "granite", "gpt_neox", "phi"}) {
    if (name == known) return transformer_from_config_json(text).status();
  }
  const nlohmann::json* const type = given(*json, "model_type");
  return error(
      Code::kBadInput,
      "config.json: 'model_type' is {}; weights are taken of gpt2, opt, llama, mistral, "
      "qwen2, qwen3, gemma, gemma2, gemma3_text, olmo2, smollm3, granite, gpt_neox and phi",
      type == nullptr ? "missing" : shown(*type));
}

std::string unused_fields_line(const std::string& path, std::string_view text) {
  constexpr size_t kMostNames = 20, kLongest = 60;
  std::vector<std::string> names = unused_config_fields(text);
  if (names.empty()) return "";
  const size_t more = names.size() - std::min(names.size(), kMostNames);
  names.resize(names.size() - more);
  for (std::string& name : names) {
    if (name.size() > kLongest) name = name.substr(0, kLongest) + "...";
  }
  return printable(fmt::format(
      "{}: Elixir does not use these fields: {}{}. The model is computed without them", path,
      fmt::join(names, ", "), more == 0 ? "" : fmt::format(" and {} more", more)));
}

}  // namespace elixir::planner
