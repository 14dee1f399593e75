// What each field of a config.json means, and that none is passed over in silence.

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "planner/models/config_json.h"
#include "planner/models/model_request.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

TransformerConfig meaning_of(const json& file) {
  return must(transformer_from_config_json(file.dump()));
}

json sizes_of(const std::string& type) {
  return {{"model_type", type},       {"vocab_size", 100},        {"max_position_embeddings", 64},
          {"hidden_size", 64},        {"intermediate_size", 80},  {"num_hidden_layers", 6},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 16}};
}

json changed_by(json file, const json& fields) {
  if (!fields.empty()) file.update(fields);
  return file;
}

void expect_comes_back(const json& file) {
  const TransformerConfig config = meaning_of(file);
  EXPECT_EQ(meaning_of(json::parse(config_json(config, ComputeType::kFp32))), config) << file;
}

const json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 32.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 16}};

// ---- rotary positions ----

TEST(RotaryJson, EachKindIsReadFromTheFieldsOfBothVersions) {
  const std::vector<std::pair<json, Rotary>> kCases = {
      {{{"rope_type", "default"}}, {.base = 500}},
      {{{"rope_type", "linear"}, {"factor", 4}},
       {.kind = RotaryKind::kLinear, .base = 500, .factor = 4}},
      {kLlama3,
       {.kind = RotaryKind::kLlama3,
        .base = 500,
        .factor = 32,
        .original_context = 16,
        .low_freq_factor = 1,
        .high_freq_factor = 4}},
      {{{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", 8}, {"attention_factor", 1.5}},
       {.kind = RotaryKind::kYarn,
        .base = 500,
        .factor = 4,
        .original_context = 64,
        .beta_fast = 8,
        .beta_slow = 1,
        .magnitude = 1.5}},
      {{{"rope_type", "dynamic"}, {"factor", 2}},
       {.kind = RotaryKind::kDynamic, .base = 500, .factor = 2, .original_context = 64}},
  };
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma2", "mixtral"}) {
    for (const auto& [described, expected] : kCases) {
      SCOPED_TRACE(type + described.dump());
      json file =
          changed_by(sizes_of(type), {{"num_local_experts", 2}, {"num_experts_per_tok", 1}});
      json inside = described;
      inside["rope_theta"] = 500;
      EXPECT_EQ(meaning_of(changed_by(file, {{"rope_parameters", inside}})).rotary, expected);
      file["rope_theta"] = 500;
      EXPECT_EQ(meaning_of(changed_by(file, {{"rope_scaling", described}})).rotary, expected);
      json old = described;
      old["type"] = old["rope_type"];
      old.erase("rope_type");
      EXPECT_EQ(meaning_of(changed_by(file, {{"rope_scaling", old}})).rotary, expected);
      expect_comes_back(changed_by(file, {{"rope_scaling", described}}));
    }
  }
}

TEST(RotaryJson, YarnsDefaultsAreThePapers) {
  const auto magnitude = [](const json& more) {
    const json yarn = changed_by({{"rope_type", "yarn"}, {"factor", 8}}, more);
    return meaning_of(changed_by(sizes_of("qwen2"), {{"rope_scaling", yarn}})).rotary.magnitude;
  };
  EXPECT_DOUBLE_EQ(magnitude({}), 0.1 * std::log(8) + 1);
  EXPECT_DOUBLE_EQ(magnitude({{"mscale", 2}, {"mscale_all_dim", 1}}),
                   (0.2 * std::log(8) + 1) / (0.1 * std::log(8) + 1));
  EXPECT_DOUBLE_EQ(magnitude({{"mscale", 2}}), 0.1 * std::log(8) + 1);
  EXPECT_DOUBLE_EQ(magnitude({{"attention_factor", nullptr}}), 0.1 * std::log(8) + 1);
  const Rotary rotary =
      meaning_of(
          changed_by(sizes_of("qwen2"), {{"rope_scaling", {{"type", "yarn"}, {"factor", 8}}}}))
          .rotary;
  EXPECT_EQ(rotary.beta_fast, 32);
  EXPECT_EQ(rotary.beta_slow, 1);
  EXPECT_TRUE(rotary.truncate);
}

TEST(RotaryJson, YarnTruncatesAsTransformersReadsIt) {
  const auto truncates = [](const json& truncate) {
    const json yarn = {{"rope_type", "yarn"}, {"factor", 8}, {"truncate", truncate}};
    return meaning_of(changed_by(sizes_of("llama"), {{"rope_parameters", yarn}})).rotary.truncate;
  };
  EXPECT_TRUE(truncates(true));
  EXPECT_FALSE(truncates(false));
  EXPECT_FALSE(truncates(nullptr));
}

// transformers reads it beside the two descriptions, and not in them.
TEST(RotaryJson, Gemma3TruncatesAsTheOuterObjectSays) {
  const auto file = [](const json& inside, const json& outside) {
    const json yarn = changed_by({{"rope_type", "yarn"}, {"factor", 8}}, inside);
    json both = changed_by({{"full_attention", yarn}, {"sliding_attention", yarn}}, outside);
    return changed_by(sizes_of("gemma3_text"), {{"rope_parameters", both}});
  };
  const json off = {{"truncate", false}}, on = {{"truncate", true}};
  const std::vector<std::string> named = {"rope_parameters.full_attention.truncate",
                                          "rope_parameters.sliding_attention.truncate"};
  for (const auto& [one, expected, unused] : {std::tuple(file(off, json::object()), true, named),
                                              {file(on, off), false, named},
                                              {file(off, off), false, {}},
                                              {file(json::object(), off), false, named},
                                              {file(on, on), true, {}}}) {
    EXPECT_EQ(meaning_of(one).rotary.truncate, expected) << one;
    EXPECT_EQ(unused_config_fields(one.dump()),
              one["rope_parameters"]["full_attention"].contains("truncate")
                  ? unused
                  : std::vector<std::string>());
    expect_comes_back(one);
  }
}

TEST(RotaryJson, DynamicScalingIsForLongerSequences) {
  const TransformerConfig config = meaning_of(changed_by(
      sizes_of("llama"), {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.5}}}}));
  EXPECT_EQ(config.context, 160);
  EXPECT_EQ(config.rotary.original_context, 64);
  const json own = json::parse(config_json(config, ComputeType::kFp32));
  EXPECT_EQ(own["max_position_embeddings"], 64);
}

TEST(RotaryJson, Gemma3HasOneForEachKindOfLayer) {
  const json scaling = {{"rope_type", "linear"}, {"factor", 8}};
  const Rotary all{.kind = RotaryKind::kLinear, .base = 5000, .factor = 8}, local{.base = 50};
  const json old =
      changed_by(sizes_of("gemma3_text"),
                 {{"rope_theta", 5000}, {"rope_local_base_freq", 50}, {"rope_scaling", scaling}});
  const json now =
      changed_by(sizes_of("gemma3_text"),
                 {{"rope_parameters",
                   {{"full_attention", changed_by(scaling, {{"rope_theta", 5000}})},
                    {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 50}}}}}});
  for (const json& file : {old, now}) {
    EXPECT_EQ(meaning_of(file).rotary, all);
    EXPECT_EQ(meaning_of(file).window_rotary, local);
    expect_comes_back(file);
  }
  EXPECT_EQ(meaning_of(sizes_of("gemma3_text")).rotary.base, 1e6);
  EXPECT_EQ(meaning_of(sizes_of("gemma3_text")).window_rotary->base, 1e4);
  EXPECT_EQ(meaning_of(sizes_of("gemma2")).window_rotary, std::nullopt);
}

TEST(RotaryJson, WhatCannotBeMeantIsRefused) {
  const auto refused = [](const json& fields, const char* says) {
    expect_refused(
        transformer_from_config_json(changed_by(sizes_of("llama"), fields).dump()).status(),
        Code::kBadInput, {says});
  };
  refused({{"rope_scaling", {{"rope_type", "linear"}}}}, "'rope_scaling.factor' is missing");
  refused({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0}}}}, "rope_scaling.factor");
  refused({{"rope_scaling", {{"rope_type", "linear"}, {"factor", "2"}}}}, "rope_scaling.factor");
  refused({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 0.5}}}}, "rope_scaling.factor");
  refused({{"rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 2}}}},
          "make them equal");
  refused({{"rope_scaling", changed_by(kLlama3, {{"high_freq_factor", 1.0}})}}, "must be above");
  refused({{"rope_scaling", changed_by(kLlama3, {{"low_freq_factor", nullptr}})}},
          "low_freq_factor");
  for (const json& zero : {json(0), json(0.0)}) {
    refused({{"rope_theta", zero}}, "'rope_theta' is 0");
    refused({{"rope_parameters", {{"rope_theta", zero}}}}, "'rope_parameters.rope_theta' is 0");
  }
  expect_refused(transformer_from_config_json(
                     changed_by(sizes_of("gemma3_text"), {{"rope_local_base_freq", 0}}).dump())
                     .status(),
                 Code::kBadInput, {"'rope_local_base_freq' is 0", "above 0"});
  refused({{"rope_parameters", {{"\x1b[31m", {{"factor", 1}}}}}}, "'?[31m'");
  refused({{"rope_theta", 1}, {"rope_scaling", {{"type", "yarn"}, {"factor", 2}}}}, "above 1");
  refused({{"rope_scaling", kLlama3}, {"rope_parameters", changed_by(kLlama3, {{"factor", 8}})}},
          "leave out one of them");
  refused({{"rope_scaling", kLlama3}, {"original_max_position_embeddings", 32}}, "make them equal");
}

// ---- attention ----

TEST(ConfigFields, BiasesAreThoseOfTheModule) {
  const auto names = [](const json& file) {
    std::vector<std::string> biases;
    for (const NamedShape& one : transformer_parameters(meaning_of(file))) {
      const bool first = one.name.starts_with("model.layers.0.");
      if (first && one.name.ends_with(".bias")) biases.push_back(one.name.substr(15));
    }
    return biases;
  };
  const std::vector<std::string> attention = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                              "self_attn.v_proj.bias", "self_attn.o_proj.bias"};
  for (const char* type : {"llama", "qwen3", "gemma2", "gemma3_text"}) {
    const json file = changed_by(sizes_of(type), {{"attention_bias", true}});
    EXPECT_EQ(names(file), attention) << type;
    EXPECT_EQ(json::parse(config_json(meaning_of(file), ComputeType::kFp32))["model_type"], type);
    expect_comes_back(file);
  }
  EXPECT_THAT(names(changed_by(sizes_of("llama"), {{"mlp_bias", true}})),
              ElementsAre("mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"));
  expect_comes_back(changed_by(sizes_of("llama"), {{"attention_bias", true}, {"mlp_bias", true}}));
}

TEST(ConfigFields, WhichLayersHaveTheWindow) {
  const auto windowed = [](const json& file) {
    const TransformerConfig config = meaning_of(file);
    std::string layers;
    for (int64_t i = 0; i < config.layers; ++i) layers += config.has_window(i) ? 'w' : '-';
    return layers;
  };
  EXPECT_EQ(windowed(sizes_of("gemma2")), "w-w-w-");
  EXPECT_EQ(windowed(sizes_of("gemma3_text")), "wwwww-");
  EXPECT_EQ(windowed(changed_by(sizes_of("gemma3_text"), {{"sliding_window_pattern", 3}})),
            "ww-ww-");
  EXPECT_EQ(windowed(changed_by(sizes_of("gemma2"), {{"sliding_window", nullptr}})), "------");
  EXPECT_EQ(windowed(sizes_of("mistral")), "wwwwww");
  EXPECT_EQ(windowed(sizes_of("llama")), "------");
  const json qwen =
      changed_by(sizes_of("qwen3"), {{"use_sliding_window", true}, {"sliding_window", 8}});
  EXPECT_EQ(windowed(changed_by(qwen, {{"max_window_layers", 4}})), "----ww");
  const json types = {"full_attention",    "sliding_attention", "full_attention",
                      "sliding_attention", "full_attention",    "full_attention"};
  for (const json& file : {qwen, sizes_of("gemma2"), sizes_of("gemma3_text")}) {
    EXPECT_EQ(windowed(changed_by(file, {{"layer_types", types}})), "-w-w--");
    expect_comes_back(changed_by(file, {{"layer_types", types}}));
  }
  expect_comes_back(sizes_of("mistral"));
  // transformers' AutoModel and MistralForCausalLM differ.
  const json mistral = changed_by(sizes_of("mistral"), {{"sliding_window", 9}});
  const json all_windowed = std::vector<std::string>(6, "sliding_attention");
  const json none_windowed = std::vector<std::string>(6, "full_attention");
  EXPECT_EQ(windowed(changed_by(mistral, {{"layer_types", all_windowed}})), "wwwwww");
  EXPECT_EQ(
      windowed(changed_by(mistral, {{"layer_types", none_windowed}, {"sliding_window", nullptr}})),
      "------");
  for (const json& other : {types, none_windowed}) {
    expect_refused(
        transformer_from_config_json(changed_by(mistral, {{"layer_types", other}}).dump()).status(),
        Code::kBadInput, {"'layer_types' and 'sliding_window' differ"});
  }
  json five = types;
  five.erase(five.begin());
  expect_refused(
      transformer_from_config_json(changed_by(qwen, {{"layer_types", five}}).dump()).status(),
      Code::kBadInput, {"'layer_types' has 5 layers"});
}

TEST(ConfigFields, OtherLayersGoOnWithThePatternOfWindows) {
  const TemporaryFolder folder;
  folder.write("config.json", sizes_of("gemma2").dump());
  const TransformerConfig config = must(config_of({.config_path = folder.path(), .layers = 9}));
  EXPECT_EQ(config.windowed.size(), 9u);
  EXPECT_TRUE(config.has_window(8));
  EXPECT_FALSE(config.has_window(7));
}

TEST(ConfigFields, GemmasScoresAndCaps) {
  const TransformerConfig gemma2 = meaning_of(sizes_of("gemma2"));
  EXPECT_EQ(gemma2.attention_softcap, 50);
  EXPECT_EQ(gemma2.final_softcap, 30);
  EXPECT_EQ(gemma2.query_scalar, 256);
  EXPECT_TRUE(gemma2.four_norms && gemma2.gelu && gemma2.tied);
  const TransformerConfig gemma3 = meaning_of(sizes_of("gemma3_text"));
  EXPECT_EQ(gemma3.attention_softcap, 0);
  EXPECT_EQ(gemma3.final_softcap, 0);
  const TransformerConfig none =
      meaning_of(changed_by(sizes_of("gemma2"), {{"attn_logit_softcapping", nullptr},
                                                 {"final_logit_softcapping", nullptr},
                                                 {"query_pre_attn_scalar", 16}}));
  EXPECT_EQ(none.attention_softcap, 0);
  EXPECT_EQ(none.final_softcap, 0);
  EXPECT_EQ(none.query_scalar, 0) << "a head's width";
}

TEST(ConfigFields, GraniteMultipliesAndSmolLmTurnsSomeLayers) {
  const json granite = changed_by(sizes_of("granite"), {{"embedding_multiplier", 12.0},
                                                        {"attention_multiplier", 0.0078125},
                                                        {"residual_multiplier", 0.22},
                                                        {"logits_scaling", 8.0}});
  const TransformerConfig read = meaning_of(granite);
  EXPECT_EQ(read.embedding_scale, 12);
  EXPECT_EQ(read.attention_scale, 0.0078125);
  EXPECT_EQ(read.residual_scale, 0.22);
  EXPECT_EQ(read.logits_divisor, 8);
  expect_comes_back(granite);
  const json smol = sizes_of("smollm3");
  for (int64_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(meaning_of(smol).has_rotation(layer), layer != 3) << layer;
  }
  const json listed = changed_by(smol, {{"no_rope_layers", {0, 1, 0, 1, 0, 1}}});
  EXPECT_FALSE(meaning_of(listed).has_rotation(0));
  EXPECT_TRUE(meaning_of(listed).has_rotation(1));
  expect_comes_back(listed);
  expect_refused(
      transformer_from_config_json(changed_by(smol, {{"no_rope_layers", {1}}}).dump()).status(),
      Code::kBadInput, {"'no_rope_layers' has 1 layers"});
  for (const json& odd : {json(false), json(2), json("1"), json(nullptr)}) {
    json layers = {1, 1, 1, 1, 1, 1};
    layers[2] = odd;
    expect_refused(
        transformer_from_config_json(changed_by(smol, {{"no_rope_layers", layers}}).dump())
            .status(),
        Code::kBadInput, {"it must be 0 or 1"});
  }
  const json windows = changed_by(smol, {{"use_sliding_window", true}, {"sliding_window", 8}});
  EXPECT_TRUE(meaning_of(windows).has_window(3));
  EXPECT_FALSE(meaning_of(windows).has_window(2));
  expect_comes_back(windows);
}

TEST(ConfigFields, APartOfAHeadIsTurned) {
  EXPECT_EQ(meaning_of(sizes_of("gpt_neox")).rotated_numel(), 4);  // a quarter of 16
  EXPECT_EQ(meaning_of(sizes_of("phi")).rotated_numel(), 8);
  const json phi = changed_by(sizes_of("phi"), {{"partial_rotary_factor", 0.25}});
  EXPECT_EQ(meaning_of(phi).rotated_numel(), 4);
  expect_comes_back(phi);
  const json neox = changed_by(sizes_of("gpt_neox"), {{"rotary_pct", 1.0},
                                                      {"rotary_emb_base", 500.0},
                                                      {"use_parallel_residual", false},
                                                      {"attention_bias", false}});
  EXPECT_EQ(meaning_of(neox).rotated_numel(), 16);
  EXPECT_EQ(meaning_of(neox).rotary.base, 500);
  EXPECT_FALSE(meaning_of(neox).parallel);
  expect_comes_back(neox);
  for (const double share : {0.1, 1.5, 1e200}) {  // of one element, and of more than there are
    const std::string text = changed_by(sizes_of("phi"), {{"partial_rotary_factor", share}}).dump();
    EXPECT_FALSE(transformer_from_config_json(text).ok());
    const auto sizes = sizes_of_refused_config(text);  // for messages
    EXPECT_TRUE(!sizes || sizes->rotary.share <= 1) << share;
  }
  for (const char* type : {"phi", "gpt_neox"}) {
    expect_comes_back(changed_by(sizes_of(type),
                                 {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}));
  }
  // The others turn whole heads.
  EXPECT_FALSE(transformer_from_config_json(
                   changed_by(sizes_of("llama"), {{"partial_rotary_factor", 0.5}}).dump())
                   .ok());
}

// ---- the start ----

TEST(ConfigFields, WeightsAreDrawnAsTheFileSays) {
  const json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 100}, {"n_positions", 32},
                     {"n_embd", 64},         {"n_layer", 2},      {"n_head", 4}};
  EXPECT_EQ(meaning_of(gpt2).init_deviation, 0.02);
  EXPECT_EQ(meaning_of(changed_by(gpt2, {{"initializer_range", 0.1}})).init_deviation, 0.1);
  const json opt = changed_by(sizes_of("opt"), {{"ffn_dim", 80}});
  EXPECT_EQ(meaning_of(changed_by(opt, {{"init_std", 0.3}})).init_deviation, 0.3);
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text",
                           "phi3", "olmo2", "smollm3", "granite", "gpt_neox", "phi"}) {
    const json file = changed_by(sizes_of(type), {{"initializer_range", 0.05}});
    EXPECT_EQ(meaning_of(file).init_deviation, 0.05) << type;
    expect_comes_back(file);
  }
  for (const auto& [file, field] : {std::pair(gpt2, "initializer_range"),
                                    {opt, "init_std"},
                                    {sizes_of("llama"), "initializer_range"}}) {
    expect_refused(transformer_from_config_json(changed_by(file, {{field, 0}}).dump()).status(),
                   Code::kBadInput, {fmt::format("'{}' is 0", field), "above 0"});
  }
}

TEST(ConfigFields, ThePaddingTokenIsTransformers) {
  const json opt = changed_by(sizes_of("opt"), {{"ffn_dim", 80}});
  EXPECT_EQ(meaning_of(opt).padding_token, 1);
  EXPECT_EQ(meaning_of(sizes_of("gemma2")).padding_token, 0);
  EXPECT_EQ(meaning_of(sizes_of("llama")).padding_token, -1);
  for (const json& file : {opt, sizes_of("gemma2"), sizes_of("llama")}) {
    EXPECT_EQ(meaning_of(changed_by(file, {{"pad_token_id", nullptr}})).padding_token, -1);
    EXPECT_EQ(meaning_of(changed_by(file, {{"pad_token_id", 7}})).padding_token, 7);
    EXPECT_EQ(meaning_of(changed_by(file, {{"pad_token_id", -1}})).padding_token, 99);
    expect_comes_back(changed_by(file, {{"pad_token_id", 7}}));
    for (const json& bad : {json(100), json(-101), json("7"), json(0.5), json(1e300)}) {
      EXPECT_THAT(transformer_from_config_json(changed_by(file, {{"pad_token_id", bad}}).dump())
                      .status()
                      .message(),
                  HasSubstr("'pad_token_id'"));
    }
  }
}

// What a file leaves out means what transformers' own file of the same sizes says: the test in
// tests/e2e/foreign_families_test.py holds the table against transformers.
TEST(ConfigFields, WhatIsLeftOutIsTransformersDefault) {
  std::ifstream table(TRANSFORMERS_DEFAULTS);
  const json all = json::parse(table);
  EXPECT_EQ(all.size(), 16u);
  for (const json& one : all) {
    const json file = one["file"];
    TransformerConfig config = meaning_of(file);
    const TransformerConfig spelled = meaning_of(changed_by(file, one["defaults"]));
    if (spelled.head_width != 0) config.head_width = config.head_numel();
    EXPECT_EQ(config, spelled) << file;
  }
}

TEST(ConfigFields, NullHeadsOfKeysAreAsManyAsOfQueries) {
  for (const char* type : {"llama", "mistral", "qwen2"}) {
    const json file = changed_by(sizes_of(type), {{"num_key_value_heads", nullptr}});
    EXPECT_EQ(meaning_of(file).kv_heads, 4) << type;
  }
}

TEST(ConfigFields, ANameOfAFileIsPrintable) {
  const json file = changed_by(sizes_of("llama"), {{"_name_or_path", "a\nb\x1b[31m"}});
  EXPECT_EQ(meaning_of(file).name, "a?b?[31m");
}

// ---- what is left ----

TEST(UnusedFields, EachFieldIsUsedRefusedOrNamed) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text",
                           "phi3", "olmo2", "smollm3"}) {
    SCOPED_TRACE(type);
    EXPECT_THAT(unused_config_fields(sizes_of(type).dump()), ElementsAre());
    const json file = changed_by(sizes_of(type), {{"embedding_multiplier", 12.0},
                                                  {"a_flag", false},
                                                  {"attention_dropout", 0.1},
                                                  {"rope_parameters", {{"rope_type", "default"}}},
                                                  {"of_none", nullptr}});
    std::vector<std::string> expected = {"a_flag", "attention_dropout", "embedding_multiplier"};
    json described = {{"rope_type", "default"}, {"odd", 1}};
    json changed = file;
    if (type == std::string("gemma3_text")) {
      changed["rope_parameters"] = {{"full_attention", described}};
      expected.push_back("rope_parameters.full_attention.odd");
    } else {
      changed["rope_parameters"] = described;
      expected.push_back("rope_parameters.odd");
    }
    EXPECT_EQ(unused_config_fields(changed.dump()), expected);
  }
}

TEST(UnusedFields, WhatTransformersAlwaysWritesIsNotNamed) {
  const json file = changed_by(sizes_of("llama"), {{"transformers_version", "5.0"},
                                                   {"torch_dtype", "bfloat16"},
                                                   {"architectures", {"LlamaForCausalLM"}},
                                                   {"use_cache", true},
                                                   {"attention_dropout", 0.0},
                                                   {"pretraining_tp", 1},
                                                   {"bos_token_id", 1},
                                                   {"eos_token_id", {1, 2}}});
  EXPECT_THAT(unused_config_fields(file.dump()), ElementsAre());
  EXPECT_EQ(unused_fields_line("config.json", file.dump()), "");
}

TEST(UnusedFields, TheLineNamesFileAndFieldsAndStaysShort) {
  json file = changed_by(sizes_of("llama"), {{"resid_pdrop", 0.1}, {"b\x1b", 1}});
  EXPECT_EQ(unused_fields_line("f/config.json", file.dump()),
            "f/config.json: Elixir does not use these fields: b?, resid_pdrop. The model is "
            "computed without them");
  for (int i = 0; i < 1000; ++i) file[std::string(1000, 'x') + std::to_string(i)] = i;
  const std::string line = unused_fields_line("f", file.dump());
  EXPECT_LT(line.size(), 2000u);
  EXPECT_THAT(line, HasSubstr("and 982 more"));
}

// Of a model of images the language model is read; the rest is named.
TEST(UnusedFields, ThoseAroundALanguageModelToo) {
  json inner = sizes_of("gemma3_text");
  inner["odd"] = 1;
  const json file = {
      {"model_type", "gemma3"}, {"text_config", inner}, {"vision_config", {{"a", 1}}}};
  EXPECT_THAT(unused_config_fields(file.dump()), ElementsAre("text_config.odd", "vision_config"));
  inner["quantization_config"] = {{"quant_method", "gptq"}};
  expect_refused(
      transformer_from_config_json(changed_by(file, {{"text_config", inner}}).dump()).status(),
      Code::kBadInput, {"'text_config.quantization_config' is given"});
}

}  // namespace
}  // namespace elixir::planner
