#include "planner/models/transformer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace elixir::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// gpt2-small to -xl, opt-125m and the llamas: what Hugging Face's models count for the published
// weights, a tied embedding once. The others follow from layers (12 w^2 + 13 w) + (vocabulary +
// rows of positions + 2) w; the papers' names round them.
TEST(TransformerConfig, NumbersOfParameters) {
  const std::map<std::string, uint64_t> expected = {
      {"gpt2-nano", 3'257'856},      {"gpt2-small", 124'439'808},    {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},   {"gpt2-xl", 1'557'611'200},     {"gpt2-1b", 1'112'193'024},
      {"gpt2-4b", 3'782'697'984},    {"gpt2-10b", 9'876'287'488},    {"gpt2-15b", 14'917'541'888},
      {"gpt2-20b", 19'750'019'072},  {"opt-nano", 3'258'368},        {"opt-125m", 125'239'296},
      {"opt-1.3b", 1'315'758'080},   {"opt-2.7b", 2'651'596'800},    {"opt-6.7b", 6'658'473'984},
      {"opt-13b", 12'853'473'280},   {"opt-30b", 29'974'540'288},    {"opt-66b", 65'719'701'504},
      {"opt-175b", 174'604'468'224}, {"llama-nano", 3'541'248},      {"llama-100m", 97'536'768},
      {"llama-7b", 6'738'415'616},   {"llama-13b", 13'015'864'320},  {"llama-33b", 32'528'943'616},
      {"llama-65b", 65'285'660'672}, {"llama2-70b", 68'976'648'192},
  };
  EXPECT_EQ(transformer_names().size(), expected.size());
  for (const auto& [name, numel] : expected) {
    const Result<TransformerConfig> config = transformer_config(name);
    ASSERT_TRUE(config.ok()) << name;
    EXPECT_EQ(config->name, name);
    EXPECT_EQ(transformer_numel(*config), numel) << name;
    EXPECT_EQ(config->width % config->heads, 0) << name;
    EXPECT_EQ(config->heads % config->kv_heads, 0) << name;
    EXPECT_GT(config->lr, 0) << name;
  }
}

TEST(TransformerConfig, SizesOfThePaper) {
  const auto sizes = [](const char* name) {
    const TransformerConfig config = *transformer_config(name);
    return std::vector<int64_t>{config.width, config.layers, config.heads};
  };
  EXPECT_THAT(sizes("gpt2-4b"), ElementsAre(3072, 32, 24));
  EXPECT_THAT(sizes("gpt2-10b"), ElementsAre(4096, 48, 32));
  EXPECT_THAT(sizes("gpt2-15b"), ElementsAre(8192, 18, 64));
  EXPECT_THAT(sizes("gpt2-20b"), ElementsAre(8192, 24, 64));
}

TEST(TransformerConfig, Gpt2InTheOrderOfItsModule) {
  const std::vector<NamedShape> all = transformer_parameters(*transformer_config("gpt2-small"));
  ASSERT_EQ(all.size(), 2u + 12 * 12 + 2);
  const auto expect = [&](size_t index, const char* name, std::vector<int64_t> shape) {
    EXPECT_EQ(all[index].name, name);
    EXPECT_EQ(all[index].shape, shape) << name;
    EXPECT_EQ(all[index].shared, index == 0) << name;
  };
  expect(0, "transformer.wte.weight", {50257, 768});
  expect(1, "transformer.wpe.weight", {1024, 768});
  expect(2, "transformer.h.0.ln_1.weight", {768});
  expect(3, "transformer.h.0.ln_1.bias", {768});
  expect(4, "transformer.h.0.attn.c_attn.weight", {768, 2304});
  expect(5, "transformer.h.0.attn.c_attn.bias", {2304});
  expect(6, "transformer.h.0.attn.c_proj.weight", {768, 768});
  expect(7, "transformer.h.0.attn.c_proj.bias", {768});
  expect(8, "transformer.h.0.ln_2.weight", {768});
  expect(9, "transformer.h.0.ln_2.bias", {768});
  expect(10, "transformer.h.0.mlp.c_fc.weight", {768, 3072});
  expect(11, "transformer.h.0.mlp.c_fc.bias", {3072});
  expect(12, "transformer.h.0.mlp.c_proj.weight", {3072, 768});
  expect(13, "transformer.h.0.mlp.c_proj.bias", {768});
  expect(145, "transformer.h.11.mlp.c_proj.bias", {768});
  expect(146, "transformer.ln_f.weight", {768});
  expect(147, "transformer.ln_f.bias", {768});
}

TEST(TransformerConfig, OptInTheOrderOfItsModule) {
  const std::vector<NamedShape> all = transformer_parameters(*transformer_config("opt-125m"));
  ASSERT_EQ(all.size(), 4u + 12 * 16);
  size_t index = 0;
  const auto expect = [&](const char* name, std::vector<int64_t> shape) {
    EXPECT_EQ(all[index].name, name);
    EXPECT_EQ(all[index].shape, shape) << name;
    ++index;
  };
  expect("model.decoder.embed_tokens.weight", {50272, 768});
  expect("model.decoder.embed_positions.weight", {2050, 768});
  expect("model.decoder.final_layer_norm.weight", {768});
  expect("model.decoder.final_layer_norm.bias", {768});
  expect("model.decoder.layers.0.self_attn.k_proj.weight", {768, 768});
  expect("model.decoder.layers.0.self_attn.k_proj.bias", {768});
  expect("model.decoder.layers.0.self_attn.v_proj.weight", {768, 768});
  expect("model.decoder.layers.0.self_attn.v_proj.bias", {768});
  expect("model.decoder.layers.0.self_attn.q_proj.weight", {768, 768});
  expect("model.decoder.layers.0.self_attn.q_proj.bias", {768});
  expect("model.decoder.layers.0.self_attn.out_proj.weight", {768, 768});
  expect("model.decoder.layers.0.self_attn.out_proj.bias", {768});
  expect("model.decoder.layers.0.self_attn_layer_norm.weight", {768});
  expect("model.decoder.layers.0.self_attn_layer_norm.bias", {768});
  expect("model.decoder.layers.0.fc1.weight", {3072, 768});
  expect("model.decoder.layers.0.fc1.bias", {3072});
  expect("model.decoder.layers.0.fc2.weight", {768, 3072});
  expect("model.decoder.layers.0.fc2.bias", {768});
  expect("model.decoder.layers.0.final_layer_norm.weight", {768});
  expect("model.decoder.layers.0.final_layer_norm.bias", {768});
  EXPECT_TRUE(all.front().shared);
}

TEST(TransformerConfig, LlamaWithGroupedQueriesAndASeparateHead) {
  const std::vector<NamedShape> all = transformer_parameters(*transformer_config("llama2-70b"));
  ASSERT_EQ(all.size(), 3u + 80 * 9);
  size_t index = 0;
  const auto expect = [&](const char* name, std::vector<int64_t> shape) {
    EXPECT_EQ(all[index].name, name);
    EXPECT_EQ(all[index].shape, shape) << name;
    ++index;
  };
  expect("model.embed_tokens.weight", {32000, 8192});
  expect("model.layers.0.self_attn.q_proj.weight", {8192, 8192});
  expect("model.layers.0.self_attn.k_proj.weight", {1024, 8192});
  expect("model.layers.0.self_attn.v_proj.weight", {1024, 8192});
  expect("model.layers.0.self_attn.o_proj.weight", {8192, 8192});
  expect("model.layers.0.mlp.gate_proj.weight", {28672, 8192});
  expect("model.layers.0.mlp.up_proj.weight", {28672, 8192});
  expect("model.layers.0.mlp.down_proj.weight", {8192, 28672});
  expect("model.layers.0.input_layernorm.weight", {8192});
  expect("model.layers.0.post_attention_layernorm.weight", {8192});
  index = all.size() - 2;
  expect("model.norm.weight", {8192});
  expect("lm_head.weight", {32000, 8192});
  EXPECT_FALSE(all.front().shared);
}

TEST(TransformerConfig, NamesAreUnique) {
  for (const std::string& name : transformer_names()) {
    std::set<std::string> seen;
    for (const NamedShape& shape : transformer_parameters(*transformer_config(name))) {
      EXPECT_TRUE(seen.insert(shape.name).second) << name << ": " << shape.name;
    }
  }
}

TEST(TransformerConfig, UnknownNameNamesTheNearest) {
  const Result<TransformerConfig> config = transformer_config("gpt2-10B");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(config.status().message(), HasSubstr("did you mean 'gpt2-10b'?"));
  EXPECT_THAT(transformer_config("opt-350m").status().message(), HasSubstr("no model is called"));
  EXPECT_THAT(transformer_config("zzzzzzzzzzzzzzzz").status().message(),
              Not(HasSubstr("did you mean")));
}

// The fields that matter of the published files.
TEST(TransformerFromJson, PublishedConfigs) {
  const auto numel = [](const char* text) {
    const Result<TransformerConfig> config = transformer_from_config_json(text);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? transformer_numel(*config) : 0;
  };
  EXPECT_EQ(numel(R"({"model_type": "gpt2", "vocab_size": 50257, "n_ctx": 1024, "n_embd": 768,
                      "n_head": 12, "n_inner": null, "n_layer": 12, "n_positions": 1024})"),
            124'439'808u);
  EXPECT_EQ(numel(R"({"model_type": "opt", "vocab_size": 50272, "max_position_embeddings": 2048,
                      "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                      "ffn_dim": 3072, "word_embed_proj_dim": 768, "do_layer_norm_before": true})"),
            125'239'296u);
  EXPECT_EQ(numel(R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
                      "intermediate_size": 11008, "num_hidden_layers": 32,
                      "num_attention_heads": 32, "max_position_embeddings": 2048,
                      "tie_word_embeddings": false})"),
            6'738'415'616u);
  // Mistral 7B v0.1 as published: 7,241,732,096 parameters.
  EXPECT_EQ(numel(R"({"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
                      "intermediate_size": 14336, "num_hidden_layers": 32,
                      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": null,
                      "max_position_embeddings": 32768, "tie_word_embeddings": false})"),
            7'241'732'096u);
  // Llama 3.2 1B ties its embeddings: 1,235,814,400 parameters.
  EXPECT_EQ(numel(R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
                      "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
                      "num_attention_heads": 32, "num_key_value_heads": 8,
                      "max_position_embeddings": 131072, "attention_bias": false,
                      "mlp_bias": false, "tie_word_embeddings": true})"),
            1'235'814'400u);
  // As published: Mixtral 8x7B 46,702,792,704; Mistral Nemo 12,247,782,400, whose heads have a
  // width of their own; Qwen2.5-32B 32,763,876,352; Qwen3-8B 8,190,735,360; Gemma 2 9B
  // 9,241,705,984; Gemma 3 1B 999,885,952; Phi-3-mini 3,821,079,552.
  EXPECT_EQ(numel(R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
                      "intermediate_size": 14336, "num_hidden_layers": 32,
                      "num_attention_heads": 32, "num_key_value_heads": 8,
                      "max_position_embeddings": 32768, "num_local_experts": 8,
                      "num_experts_per_tok": 2, "tie_word_embeddings": false})"),
            46'702'792'704u);
  EXPECT_EQ(numel(R"({"model_type": "mistral", "vocab_size": 131072, "hidden_size": 5120,
                      "intermediate_size": 14336, "num_hidden_layers": 40, "head_dim": 128,
                      "num_attention_heads": 32, "num_key_value_heads": 8,
                      "max_position_embeddings": 131072, "tie_word_embeddings": false})"),
            12'247'782'400u);
  EXPECT_EQ(numel(R"({"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 5120,
                      "intermediate_size": 27648, "num_hidden_layers": 64,
                      "num_attention_heads": 40, "num_key_value_heads": 8,
                      "max_position_embeddings": 131072, "tie_word_embeddings": false})"),
            32'763'876'352u);
  EXPECT_EQ(numel(R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096,
                      "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128,
                      "num_attention_heads": 32, "num_key_value_heads": 8,
                      "max_position_embeddings": 40960, "attention_bias": false,
                      "tie_word_embeddings": false, "rope_theta": 1000000})"),
            8'190'735'360u);
  EXPECT_EQ(numel(R"({"model_type": "gemma2", "vocab_size": 256000, "hidden_size": 3584,
                      "intermediate_size": 14336, "num_hidden_layers": 42, "head_dim": 256,
                      "num_attention_heads": 16, "num_key_value_heads": 8,
                      "max_position_embeddings": 8192, "final_logit_softcapping": 30.0})"),
            9'241'705'984u);
  const char* const gemma3 = R"({"model_type": "gemma3_text", "vocab_size": 262144,
      "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "head_dim": 256,
      "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 32768})";
  EXPECT_EQ(numel(gemma3), 999'885'952u);
  // One that sees images, too: its language model's.
  EXPECT_EQ(numel(fmt::format(R"({{"model_type": "gemma3", "text_config": {}}})", gemma3).c_str()),
            999'885'952u);
  EXPECT_EQ(numel(R"({"model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072,
                      "intermediate_size": 8192, "num_hidden_layers": 32,
                      "num_attention_heads": 32, "num_key_value_heads": 32,
                      "max_position_embeddings": 4096})"),
            3'821'079'552u);
}

TEST(TransformerFromJson, SaysWhatIsWrong) {
  const auto message = [](const std::string& text) {
    const Result<TransformerConfig> config = transformer_from_config_json(text);
    EXPECT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.status().code(), Code::kBadInput) << text;
    return config.status().message();
  };
  // A good file with one field replaced (or left out: "").
  const auto with = [](const std::string& field, const std::string& value) {
    std::map<std::string, std::string> fields = {{"vocab_size", "100"},
                                                 {"n_embd", "64"},
                                                 {"n_head", "4"},
                                                 {"n_layer", "2"},
                                                 {"n_positions", "32"}};
    fields[field] = value;
    std::string text = R"({"model_type": "gpt2")";
    for (const auto& [name, text_value] : fields) {
      if (!text_value.empty()) text += ", \"" + name + "\": " + text_value;
    }
    return text + "}";
  };
  ASSERT_TRUE(transformer_from_config_json(with("n_head", "4")).ok());

  for (const char* text : {"", "{", "[]", "7", "\xff\xfe", "null"}) {
    EXPECT_THAT(message(text), HasSubstr("not a JSON object")) << text;
  }
  EXPECT_THAT(message("{}"), HasSubstr("known: gpt2, opt, llama, mistral, mixtral, qwen2"));
  EXPECT_THAT(message(R"({"model_type": "bert"})"), HasSubstr("\"bert\""));
  EXPECT_THAT(message(R"({"model_type": 3})"), HasSubstr("'model_type' is 3"));
  EXPECT_THAT(message(with("n_embd", "")), HasSubstr("'n_embd' is missing"));
  for (const char* value : {"0", "-64", "64.5", "\"64\"", "[64]", "1e30", "1048577", "true"}) {
    EXPECT_THAT(message(with("n_embd", value)), HasSubstr("'n_embd' is ")) << value;
  }
  EXPECT_THAT(message(with("n_head", "5")), HasSubstr("5 attention heads do not divide"));
  EXPECT_THAT(message(with("tie_word_embeddings", "1")), HasSubstr("must be true or false"));
  EXPECT_THAT(message(with("quantization_config", R"({"bits": 4})")),
              HasSubstr("'quantization_config' is given"));
  EXPECT_TRUE(transformer_from_config_json(with("quantization_config", "null")).ok());
  EXPECT_THAT(message(R"({"model_type": "opt", "vocab_size": 50272, "hidden_size": 1024,
                          "max_position_embeddings": 2048, "num_hidden_layers": 24, "ffn_dim": 4096,
                          "num_attention_heads": 16, "word_embed_proj_dim": 512,
                          "do_layer_norm_before": false})"),
              HasSubstr("'do_layer_norm_before' is false"));
}

TEST(TransformerFromJson, TheLargestThatIsReadDoesNotOverflow) {
  const Result<TransformerConfig> config = transformer_from_config_json(
      R"({"model_type": "llama", "vocab_size": 268435456, "hidden_size": 1048576,
          "intermediate_size": 16777216, "num_hidden_layers": 4096, "num_attention_heads": 1,
          "max_position_embeddings": 1, "tie_word_embeddings": false})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const double w = 1048576;
  const double expected = 4096 * (4 * w * w + 3 * w * 16777216 + 2 * w) + 2 * w * 268435456 + w;
  EXPECT_DOUBLE_EQ(static_cast<double>(transformer_numel(*config)), expected);

  // Heads of their own width and experts are bounded so that the same holds.
  const auto refused = [](const char* fields) {
    const Result<TransformerConfig> other = transformer_from_config_json(fmt::format(
        R"({{"model_type": "mixtral", "vocab_size": 1000, "hidden_size": 1048576,
             "intermediate_size": 16777216, "num_hidden_layers": 4096,
             "max_position_embeddings": 1, "num_experts_per_tok": 1, {}}})",
        fields));
    return other.ok() ? "" : other.status().message();
  };
  EXPECT_THAT(refused(R"("num_attention_heads": 1048576, "head_dim": 16384,
                         "num_local_experts": 1)"),
              HasSubstr("'head_dim' times 'num_attention_heads'"));
  EXPECT_THAT(refused(R"("num_attention_heads": 1, "num_local_experts": 4096)"),
              HasSubstr("'num_local_experts' times 'intermediate_size'"));
  EXPECT_THAT(refused(R"("num_attention_heads": 1, "num_local_experts": 0)"),
              HasSubstr("'num_local_experts' is 0"));
  EXPECT_EQ(refused(R"("num_attention_heads": 1, "num_local_experts": 1)"), "");
}

}  // namespace
}  // namespace elixir::planner
