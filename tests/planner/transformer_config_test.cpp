#include "planner/models/transformer_config.h"

#include <map>
#include <set>

#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

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
    const TransformerConfig config = must(transformer_config(name));
    EXPECT_EQ(config.name, name);
    EXPECT_EQ(transformer_numel(config), numel) << name;
    EXPECT_EQ(config.width % config.heads, 0) << name;
    EXPECT_EQ(config.heads % config.kv_heads, 0) << name;
    EXPECT_GT(config.lr, 0) << name;
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

// A weight, and with it a bias of so many elements (0: none).
struct Named {
  const char* name;
  std::vector<int64_t> shape;
  int64_t bias = 0;
};

// `some`, whose names begin alike, from index `at` on.
void expect_parameters(const char* model, size_t at, const std::string& begin,
                       const std::vector<Named>& some) {
  SCOPED_TRACE(model);
  const std::vector<NamedShape> all = transformer_parameters(*transformer_config(model));
  for (const Named& one : some) {
    EXPECT_EQ(all.at(at).name, begin + one.name + ".weight");
    EXPECT_EQ(all.at(at).shape, one.shape) << one.name;
    ++at;
    if (one.bias == 0) continue;
    EXPECT_EQ(all.at(at).name, begin + one.name + ".bias");
    EXPECT_EQ(all.at(at).shape, std::vector<int64_t>{one.bias}) << one.name;
    ++at;
  }
}

TEST(TransformerConfig, EachFamilysParametersInTheOrderOfItsModule) {
  const std::tuple<const char*, size_t, bool> kNumbers[] = {{"gpt2-small", 2 + 12 * 12 + 2, true},
                                                            {"opt-125m", 4 + 12 * 16, true},
                                                            {"llama2-70b", 3 + 80 * 9, false}};
  for (const auto& [model, number, tied] : kNumbers) {
    const std::vector<NamedShape> all = transformer_parameters(*transformer_config(model));
    EXPECT_EQ(all.size(), number) << model;
    for (const NamedShape& one : all) EXPECT_EQ(one.shared, tied && &one == &all.front()) << model;
  }
  expect_parameters("gpt2-small", 0, "transformer.", {{"wte", {50257, 768}}, {"wpe", {1024, 768}}});
  expect_parameters("gpt2-small", 2, "transformer.h.0.",
                    {{"ln_1", {768}, 768},
                     {"attn.c_attn", {768, 2304}, 2304},
                     {"attn.c_proj", {768, 768}, 768},
                     {"ln_2", {768}, 768},
                     {"mlp.c_fc", {768, 3072}, 3072},
                     {"mlp.c_proj", {3072, 768}, 768}});
  expect_parameters("gpt2-small", 144, "transformer.",
                    {{"h.11.mlp.c_proj", {3072, 768}, 768}, {"ln_f", {768}, 768}});
  expect_parameters("opt-125m", 0, "model.decoder.",
                    {{"embed_tokens", {50272, 768}},
                     {"embed_positions", {2050, 768}},
                     {"final_layer_norm", {768}, 768}});
  expect_parameters("opt-125m", 4, "model.decoder.layers.0.",
                    {{"self_attn.k_proj", {768, 768}, 768},
                     {"self_attn.v_proj", {768, 768}, 768},
                     {"self_attn.q_proj", {768, 768}, 768},
                     {"self_attn.out_proj", {768, 768}, 768},
                     {"self_attn_layer_norm", {768}, 768},
                     {"fc1", {3072, 768}, 3072},
                     {"fc2", {768, 3072}, 768},
                     {"final_layer_norm", {768}, 768}});
  expect_parameters("llama2-70b", 0, "model.", {{"embed_tokens", {32000, 8192}}});
  expect_parameters("llama2-70b", 1, "model.layers.0.",
                    {{"self_attn.q_proj", {8192, 8192}},
                     {"self_attn.k_proj", {1024, 8192}},
                     {"self_attn.v_proj", {1024, 8192}},
                     {"self_attn.o_proj", {8192, 8192}},
                     {"mlp.gate_proj", {28672, 8192}},
                     {"mlp.up_proj", {28672, 8192}},
                     {"mlp.down_proj", {8192, 28672}},
                     {"input_layernorm", {8192}},
                     {"post_attention_layernorm", {8192}}});
  expect_parameters("llama2-70b", 1 + 80 * 9, "",
                    {{"model.norm", {8192}}, {"lm_head", {32000, 8192}}});
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
  expect_refused(transformer_config("gpt2-10B").status(), Code::kInvalidArgument,
                 {"did you mean 'gpt2-10b'?"});
  EXPECT_THAT(transformer_config("opt-350m").status().message(), HasSubstr("no model is called"));
  EXPECT_THAT(transformer_config("zzzzzzzzzzzzzzzz").status().message(),
              Not(HasSubstr("did you mean")));
}

// The fields that matter of a published file, and its number of parameters as published.
struct Published {
  const char* type;
  int vocabulary, width, mlp_width, layers, heads, kv_heads;
  std::string others;
  uint64_t numel;
};

TEST(TransformerFromJson, PublishedConfigs) {
  const auto numel = [](const std::string& text) {
    return transformer_numel(must(transformer_from_config_json(text)));
  };
  const auto gpt2 = [&](const char* inner) {
    return numel(fmt::format(R"({{"model_type": "gpt2", "vocab_size": 50257, "n_ctx": 1024,
                                 "n_embd": 768, "n_head": 12, "n_inner": {}, "n_layer": 12,
                                 "n_positions": 1024}})",
                             inner));
  };
  EXPECT_EQ(gpt2("null"), 124'439'808u);
  EXPECT_EQ(gpt2("2048"), 124'439'808u - 12 * 1024 * (2 * 768 + 1));
  EXPECT_EQ(numel(R"({"model_type": "opt", "vocab_size": 50272, "max_position_embeddings": 2048,
                      "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                      "ffn_dim": 3072, "word_embed_proj_dim": 768, "do_layer_norm_before": true})"),
            125'239'296u);
  const std::string untied = R"(, "tie_word_embeddings": false)";
  const Published kFiles[] = {
      {"llama", 32000, 4096, 11008, 32, 32, 32, untied, 6'738'415'616},
      {"mistral", 32000, 4096, 14336, 32, 32, 8, R"(, "head_dim": null)" + untied, 7'241'732'096},
      // Llama 3.2 1B
      {"llama", 128256, 2048, 8192, 16, 32, 8,
       R"(, "head_dim": 64, "attention_bias": false, "mlp_bias": false,
            "tie_word_embeddings": true)",
       1'235'814'400},
      // Mixtral 8x7B
      {"mixtral", 32000, 4096, 14336, 32, 32, 8,
       R"(, "num_local_experts": 8, "num_experts_per_tok": 2)" + untied, 46'702'792'704},
      // Mistral Nemo, whose heads have a width of their own
      {"mistral", 131072, 5120, 14336, 40, 32, 8, R"(, "head_dim": 128)" + untied, 12'247'782'400},
      {"qwen2", 152064, 5120, 27648, 64, 40, 8, untied, 32'763'876'352},  // 2.5, 32 B
      {"qwen3", 151936, 4096, 12288, 36, 32, 8,
       R"(, "head_dim": 128, "attention_bias": false, "rope_theta": 1000000)" + untied,
       8'190'735'360},
      {"gemma2", 256000, 3584, 14336, 42, 16, 8,
       R"(, "head_dim": 256, "final_logit_softcapping": 30.0)", 9'241'705'984},
      {"gemma3_text", 262144, 1152, 6912, 26, 4, 1, R"(, "head_dim": 256)", 999'885'952},
      {"phi3", 32064, 3072, 8192, 32, 32, 32, "", 3'821'079'552},  // mini
      {"gemma", 256000, 2048, 16384, 18, 8, 1, R"(, "head_dim": 256)", 2'506'172'416},
      {"olmo2", 100352, 4096, 11008, 32, 32, 32, untied, 7'298'617'344},
      {"smollm3", 128256, 2048, 11008, 36, 16, 4, "", 3'075'098'624},
      {"granite", 49155, 4096, 12800, 40, 32, 8, R"(, "tie_word_embeddings": true)", 8'170'848'256},
      {"gpt_neox", 50432, 4096, 16384, 32, 32, 32, "", 6'857'302'016},  // Pythia 6.9 B
      {"phi", 51200, 2560, 10240, 32, 32, 32, R"(, "partial_rotary_factor": 0.4)", 2'779'683'840},
  };
  for (const Published& file : kFiles) {
    const std::string text = fmt::format(
        R"({{"model_type": "{}", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
             "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
             "max_position_embeddings": 4096{}}})",
        file.type, file.vocabulary, file.width, file.mlp_width, file.layers, file.heads,
        file.kv_heads, file.others);
    EXPECT_EQ(numel(text), file.numel) << text;
    if (file.type != std::string("gemma3_text")) continue;
    // One that sees images, too: its language model's.
    EXPECT_EQ(numel(fmt::format(R"({{"model_type": "gemma3", "text_config": {}}})", text)),
              file.numel);
  }
}

TEST(TransformerFromJson, SaysWhatIsWrong) {
  const auto message = [](const std::string& text) {
    return refusal_of(transformer_from_config_json(text).status(), Code::kBadInput);
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
    EXPECT_THAT(message(text), testing::AnyOf(HasSubstr("not a JSON object"),
                                              HasSubstr("is incomplete"), HasSubstr("UTF-16")))
        << text;
  }
  EXPECT_THAT(message("{}"), HasSubstr("known: gpt2, opt, llama, mistral, mixtral, qwen2"));
  EXPECT_THAT(message(R"({"model_type": "bert"})"), HasSubstr("\"bert\""));
  EXPECT_THAT(message(R"({"model_type": 3})"),
              AllOf(HasSubstr("'model_type' is 3"), HasSubstr("elixirctl estimate counts others")));
  EXPECT_THAT(message(with("n_embd", "")), HasSubstr("'n_embd' is missing"));
  for (const char* value : {"0", "-64", "64.5", "\"64\"", "[64]", "1e30", "1048577", "true"}) {
    EXPECT_THAT(message(with("n_embd", value)), HasSubstr("'n_embd' is ")) << value;
  }
  EXPECT_THAT(message(with("n_head", "5")), HasSubstr("5 attention heads do not divide"));
  EXPECT_THAT(message(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64,
                          "intermediate_size": 80, "num_hidden_layers": 1, "head_dim": 63,
                          "num_attention_heads": 4, "max_position_embeddings": 32})"),
              HasSubstr("'head_dim'"));
  EXPECT_THAT(message(with("tie_word_embeddings", "1")), HasSubstr("must be true or false"));
  EXPECT_THAT(message(with("quantization_config", R"({"bits": 4})")),
              AllOf(HasSubstr("'quantization_config' is given"),
                    HasSubstr("give the folder of the model in 16 bits")));
  EXPECT_TRUE(transformer_from_config_json(with("quantization_config", "null")).ok());
  EXPECT_THAT(message(R"({"model_type": "opt", "vocab_size": 50272, "hidden_size": 1024,
                          "max_position_embeddings": 2048, "num_hidden_layers": 24, "ffn_dim": 4096,
                          "num_attention_heads": 16, "word_embed_proj_dim": 512,
                          "do_layer_norm_before": false})"),
              HasSubstr("'do_layer_norm_before' is false"));
}

TEST(TransformerFromJson, TheLargestThatIsReadDoesNotOverflow) {
  const TransformerConfig config = must(transformer_from_config_json(
      R"({"model_type": "llama", "vocab_size": 268435456, "hidden_size": 1048576,
          "intermediate_size": 16777216, "num_hidden_layers": 4096, "num_attention_heads": 1,
          "max_position_embeddings": 1, "tie_word_embeddings": false})"));
  const double w = 1048576;
  const double expected = 4096 * (4 * w * w + 3 * w * 16777216 + 2 * w) + 2 * w * 268435456 + w;
  EXPECT_DOUBLE_EQ(static_cast<double>(transformer_numel(config)), expected);

  // Heads of their own width and experts are bounded so that the same holds.
  const auto refused = [](const char* fields) {
    const Result<TransformerConfig> other = transformer_from_config_json(fmt::format(
        R"({{"model_type": "mixtral", "vocab_size": 1000, "hidden_size": 1048576,
             "intermediate_size": 16777216, "num_hidden_layers": 4096,
             "num_key_value_heads": 1, "max_position_embeddings": 1, "num_experts_per_tok": 1,
             {}}})",
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
