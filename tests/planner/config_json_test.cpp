#include "planner/models/config_json.h"

#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

TransformerConfig read(const std::string& text) { return must(transformer_from_config_json(text)); }

// What a file does not hold.
TransformerConfig without_lr(TransformerConfig config) {
  config.lr = 0;
  return config;
}

TEST(ConfigJson, ComesBackAsItWasForEveryKnownModel) {
  for (const std::string& name : transformer_names()) {
    const TransformerConfig config = *transformer_config(name);
    EXPECT_EQ(read(config_json(config, ComputeType::kBf16)), without_lr(config)) << name;
  }
}

// Files of all model types that are read, with values that are nobody's default.
std::string file_of(const std::string& type) {
  if (type == "gpt2") {
    return R"({"model_type": "gpt2", "vocab_size": 100, "n_positions": 32, "n_embd": 64,
               "n_layer": 2, "n_head": 4, "n_inner": 80, "layer_norm_epsilon": 1e-3})";
  }
  if (type == "opt") {
    return R"({"model_type": "opt", "vocab_size": 100, "max_position_embeddings": 32,
               "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 80,
               "tie_word_embeddings": false})";
  }
  json file = {
      {"model_type", type},       {"vocab_size", 100},         {"max_position_embeddings", 32},
      {"hidden_size", 64},        {"intermediate_size", 80},   {"num_hidden_layers", 2},
      {"num_attention_heads", 4}, {"num_key_value_heads", 2},  {"head_dim", 24},
      {"rms_norm_eps", 3e-4},     {"rope_theta", 12345.0},     {"num_local_experts", 3},
      {"num_experts_per_tok", 2}, {"sliding_window", nullptr}, {"tie_word_embeddings", true}};
  if (type == "gemma2") file["final_logit_softcapping"] = 30.0;
  return file.dump();
}

constexpr const char* kTypes[] = {"gpt2",  "opt",   "llama",  "mistral",     "mixtral",
                                  "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"};

TEST(ConfigJson, ComesBackAsItWasForEveryModelType) {
  for (const char* type : kTypes) {
    const TransformerConfig config = read(file_of(type));
    const std::string text = config_json(config, ComputeType::kFp16);
    EXPECT_EQ(read(text), without_lr(config)) << type;
    const json written = json::parse(text);
    EXPECT_EQ(written["torch_dtype"], "float16");
    // A Mistral whose heads share the width evenly is a Llama.
    const char* const expected = std::string(type) == "mistral" ? "llama" : type;
    EXPECT_EQ(written["model_type"], expected);
    EXPECT_EQ(written["architectures"].size(), 1u);
  }
}

TEST(ConfigJson, SaysEpsilonsAndTheBaseOfPositionsAsTheyAreComputed) {
  const json gpt2 = json::parse(config_json(read(file_of("gpt2")), ComputeType::kFp32));
  EXPECT_EQ(gpt2["layer_norm_epsilon"], 1e-3);
  EXPECT_EQ(gpt2["activation_function"], "gelu_new");
  const json llama = json::parse(config_json(read(file_of("llama")), ComputeType::kFp32));
  EXPECT_EQ(llama["rms_norm_eps"], 3e-4);
  EXPECT_EQ(llama["rope_theta"], 12345.0);
  EXPECT_EQ(llama["rope_parameters"]["rope_theta"], 12345.0);
  EXPECT_EQ(llama["hidden_act"], "silu");
}

// transformers 5 writes no rope_theta of its own.
TEST(ConfigJson, TheBaseOfPositionsIsReadAsEitherVersionWritesIt) {
  json file = json::parse(file_of("llama"));
  file.erase("rope_theta");
  EXPECT_EQ(read(file.dump()).rotary.base, 10000);
  file["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(read(file.dump()).rotary.base, 500000);
  file["rope_parameters"]["rope_theta"] = "wide";
  EXPECT_THAT(transformer_from_config_json(file.dump()).status().message(),
              HasSubstr("rope_theta"));
}

TEST(ConfigJson, WhatAFileLeavesOutIsHuggingFaces) {
  json file = json::parse(file_of("llama"));
  file.erase("rms_norm_eps");
  EXPECT_EQ(read(file.dump()).norm_eps, 1e-6);
  file["model_type"] = "phi3";
  EXPECT_EQ(read(file.dump()).norm_eps, 1e-5);
  file["model_type"] = "mistral";
  EXPECT_EQ(read(file.dump()).window, 0);
  file.erase("sliding_window");
  EXPECT_EQ(read(file.dump()).window, 4096);
  file["model_type"] = "qwen2";
  file["sliding_window"] = 16;
  EXPECT_EQ(read(file.dump()).window, 0);
  file["use_sliding_window"] = true;
  EXPECT_EQ(read(file.dump()).window, 0) << "the first 28 layers see all";
  file["max_window_layers"] = read(file.dump()).layers;
  EXPECT_EQ(read(file.dump()).window, 0);
  file["max_window_layers"] = 0;
  EXPECT_EQ(read(file.dump()).window, 16);
  file["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(read(file.dump()).window, 0);
  file["layer_types"][1] = "sliding_attention";
  EXPECT_EQ(read(file.dump()).window, 16);
}

TEST(ConfigJson, RotaryBasesThatDifferAreRefused) {
  json file = json::parse(file_of("llama"));
  const double base = read(file.dump()).rotary.base;
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    json both = file;
    both[field] = {{"rope_type", "default"}, {"rope_theta", base}};
    EXPECT_EQ(read(both.dump()).rotary.base, base);
    both[field]["rope_theta"] = base + 1;
    EXPECT_THAT(transformer_from_config_json(both.dump()).status().message(),
                AllOf(HasSubstr("'rope_theta'"), HasSubstr(field)));
    both["rope_theta"] = nullptr;
    EXPECT_EQ(read(both.dump()).rotary.base, base + 1);
  }
}

TEST(ConfigJson, AnotherTypeLeavesTheOtherFields) {
  const std::string text = must(config_json_of_type(
      R"({"model_type": "x", "torch_dtype": "float32", "mine": [1, {"a": null}]})",
      ComputeType::kBf16));
  EXPECT_EQ(json::parse(text), json::parse(R"({"model_type": "x", "torch_dtype": "bfloat16",
                            "mine": [1, {"a": null}]})"));
  EXPECT_EQ(json::parse(*config_json_of_type(R"({"dtype": "float32"})", ComputeType::kBf16)),
            json::parse(R"({"dtype": "bfloat16", "torch_dtype": "bfloat16"})"));
  for (const char* bad : {"", "[]", "{"}) {
    EXPECT_EQ(config_json_of_type(bad, ComputeType::kBf16).status().code(), Code::kBadInput) << bad;
  }
}

TEST(ConfigJson, SaysWhatWeightsAreStoredIn) {
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
    EXPECT_EQ(type_of_config_json(config_json(read(file_of("opt")), type)), type);
  }
  EXPECT_EQ(type_of_config_json(R"({"dtype": "bfloat16"})"), ComputeType::kBf16);
  for (const char* text : {"", "[]", "{}", R"({"torch_dtype": 7})", R"({"torch_dtype": null})"}) {
    EXPECT_EQ(type_of_config_json(text), ComputeType::kFp32) << text;
  }
}

TEST(CheckComputed, TakesWhatItsOwnFilesSay) {
  for (const char* type :
       {"gpt2", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"}) {
    const Status own = check_computed(config_json(read(file_of(type)), ComputeType::kFp32));
    EXPECT_TRUE(own.ok()) << type << own.message();
    EXPECT_TRUE(check_computed(file_of(type)).ok()) << type;
  }
}

// Nobody has compared these with their originals; what Elixir trained is what Elixir computes.
TEST(CheckComputed, TakesItsOwnFilesOfEveryType) {
  for (const char* type : {"mixtral", "phi3"}) {
    EXPECT_THAT(check_computed(file_of(type)).message(), HasSubstr("'model_type'")) << type;
    const std::string own = config_json(read(file_of(type)), ComputeType::kBf16);
    EXPECT_TRUE(check_computed(own).ok()) << check_computed(own).message();
    EXPECT_TRUE(check_computed(*config_json_of_type(own, ComputeType::kFp16)).ok()) << type;
    json other = json::parse(own);
    other["query_pre_attn_scalar"] = 7;
    EXPECT_THAT(check_computed(other.dump()).message(), HasSubstr("'model_type'")) << type;
  }
}

// Wherever a file is read: weights of somebody's and sizes alone mean the same model.
TEST(ConfigJson, NamesTheFieldThatAsksForSomethingElse) {
  const auto refused = [](const std::string& type, const std::string& field, const json& value) {
    json file = json::parse(file_of(type));
    file[field] = value;
    SCOPED_TRACE(type);
    for (const Status& status :
         {check_computed(file.dump()), transformer_from_config_json(file.dump()).status()}) {
      expect_refused(status, Code::kBadInput, {field, "do not compute"});
    }
  };
  refused("gpt2", "activation_function", "relu");
  refused("gpt2", "scale_attn_weights", false);
  refused("gpt2", "scale_attn_by_inverse_layer_idx", true);
  refused("gpt2", "tie_word_embeddings", false);
  refused("opt", "activation_function", "gelu");
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    refused(type, "hidden_act", "gelu");
    refused(type, "partial_rotary_factor", 0.5);
    for (const char* field : {"rope_scaling", "rope_parameters"}) {
      refused(type, field, {{"rope_type", "longrope"}, {"factor", 8}});
      refused(type, field, {{"type", "mrope"}});
      refused(type, field, {{"full_attention", {{"rope_type", "default"}}}});
      refused(type, field, {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}});
      refused(type, field, 7);
    }
  }
  refused("gemma2", "hidden_activation", "gelu");
  refused("gemma2", "layer_types", {"full_attention", "chunked_attention"});
  for (const char* type : {"gemma2", "gemma3_text"}) {
    refused(type, "use_bidirectional_attention", true);
  }
  refused("gemma3_text", "rope_parameters", {{"rope_type", "default"}});
  for (const char* bad : {"", "[]", "{}", "\xff"}) {
    EXPECT_EQ(check_computed(bad).code(), Code::kBadInput) << bad;
  }
}

// By each of its readers: what walks through values would need a stack and memory for each level.
void expect_all_refuse(const std::string& text, const std::string& why) {
  for (const Status& status : {transformer_from_config_json(text).status(), check_computed(text),
                               config_json_of_type(text, ComputeType::kBf16).status()}) {
    expect_refused(status, Code::kBadInput, {why});
  }
  EXPECT_EQ(type_of_config_json(text), ComputeType::kFp32);
}

TEST(ConfigJson, WhatIsNoJsonIsNamedWithItsPlace) {
  const auto says = [](const std::string& text, std::initializer_list<std::string_view> words) {
    expect_refused(transformer_from_config_json(text).status(), Code::kBadInput, words);
  };
  says(R"({"a": NaN, "b": 1})", {"at byte 6", "'NaN, \"b\": 1}'", "write a finite number"});
  says(R"({"a": Infinity})", {"at byte 6", "'Infinity}'", "write a finite number"});
  says(R"({"a": -Infinity})", {"at byte 6", "'-Infinity}'", "write a finite number"});
  says(R"({"a": 1e400, "b": 1})", {"at byte 6", "'1e400", "write a finite number"});
  says(R"({"a": tru})", {"at byte 9", "config.json of a Hugging Face model"});
  says("{\"a\": \x1b}", {"at byte 6", "'?}'"});
  says(R"({"a": 1)", {"ends at byte 7", "incomplete"});
  says("", {"ends at byte 0"});
  says("[1]", {"not a JSON object"});
  says(std::string("\xff\xfe{\0}\0", 6), {"UTF-16", "iconv"});
  says(std::string("\xfe\xff\0{\0}", 6), {"UTF-16", "iconv"});
}

TEST(ConfigJson, WhatIsDeepOrLongIsRefused) {
  const std::string good = config_json(read(file_of("llama")), ComputeType::kBf16);
  const auto with = [&](const std::string& value) {
    return good.substr(0, good.rfind('}')) + ",\"x\":" + value + "}";
  };
  const auto nested = [&](size_t levels) {
    return with(std::string(levels, '[') + std::string(levels, ']'));
  };
  ASSERT_TRUE(transformer_from_config_json(nested(31)).ok());
  for (const size_t levels : {32, 30'000, 450'000})
    expect_all_refuse(nested(levels), "deeper than 32");
  expect_all_refuse(with("\"" + std::string(kMaxConfigBytes, 'x') + "\""), "are the most");
}

// What is written is read again, though spaces would make it longer than may be read.
TEST(ConfigJson, ManyValuesAreWrittenAsShortAsTheyCame) {
  std::string text = R"({"x": [)" + std::string(25, '[') + "0";
  while (text.size() < kMaxConfigBytes / 2) text += ",0";
  text += std::string(26, ']') + "}";
  const std::string written = must(config_json_of_type(text, ComputeType::kBf16));
  EXPECT_LE(written.size(), kMaxConfigBytes);
  EXPECT_EQ(type_of_config_json(written), ComputeType::kBf16);
}

}  // namespace
}  // namespace elixir::planner
