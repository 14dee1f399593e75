// No number in a config.json that the reader accepts breaks a check of models/.

#include <ATen/Functions.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tests/models/built.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

using nlohmann::json;

std::vector<json> files() {
  const json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 20},
                     {"n_positions", 16},    {"n_embd", 16},
                     {"n_layer", 1},         {"n_head", 2},
                     {"n_inner", 16},        {"layer_norm_epsilon", 1e-5}};
  const json opt = {
      {"model_type", "opt"},           {"vocab_size", 20},  {"ffn_dim", 16},
      {"num_hidden_layers", 1},        {"hidden_size", 16}, {"num_attention_heads", 2},
      {"max_position_embeddings", 16}, {"init_std", 0.02}};
  const json llama = {
      {"model_type", "llama"},         {"vocab_size", 20},          {"hidden_size", 16},
      {"intermediate_size", 16},       {"num_hidden_layers", 1},    {"num_attention_heads", 2},
      {"max_position_embeddings", 16}, {"num_key_value_heads", 2},  {"head_dim", 8},
      {"rms_norm_eps", 1e-5},          {"initializer_range", 0.02}, {"pad_token_id", 1}};
  std::vector<json> all = {gpt2, opt};
  for (const char* described :
       {R"({"rope_type": "default", "rope_theta": 100})",
        R"({"rope_type": "linear", "rope_theta": 100, "factor": 2})",
        R"({"rope_type": "dynamic", "rope_theta": 100, "factor": 2})",
        R"({"rope_type": "llama3", "rope_theta": 100, "factor": 2, "low_freq_factor": 1,
            "high_freq_factor": 4, "original_max_position_embeddings": 8})",
        R"({"rope_type": "yarn", "rope_theta": 100, "factor": 2, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1, "mscale_all_dim": 1, "attention_factor": 1,
            "original_max_position_embeddings": 8})"}) {
    all.push_back(llama);
    all.back()["rope_parameters"] = json::parse(described);
  }
  json gemma = llama, mixtral = llama;
  gemma.update({{"model_type", "gemma3_text"},
                {"rope_local_base_freq", 10},
                {"rope_theta", 100},
                {"sliding_window", 4},
                {"sliding_window_pattern", 2},
                {"query_pre_attn_scalar", 8},
                {"final_logit_softcapping", 30}});
  all.push_back(gemma);
  gemma.update({{"model_type", "gemma2"}, {"attn_logit_softcapping", 50}});
  all.push_back(gemma);
  mixtral.update({{"model_type", "mixtral"}, {"num_local_experts", 2}, {"num_experts_per_tok", 1}});
  all.push_back(mixtral);
  return all;
}

// Whether the file was accepted.
bool runs(const json& file) {
  const auto config = planner::transformer_from_config_json(file.dump());
  if (!config.ok() || planner::transformer_numel(*config) > 100'000) return false;
  const std::shared_ptr<Decoder> model = built(*config);
  const int64_t seq = std::min<int64_t>(config->context, 12);
  EXPECT_NO_THROW(model->forward(at::zeros({1, seq}, at::kLong))) << file;
  return true;
}

TEST(ConfigNumbers, NoneThatIsAcceptedBreaksACheck) {
  int accepted = 0;
  const at::NoGradGuard no_gradients;
  for (const json& file : files()) {
    ASSERT_TRUE(runs(file)) << file;
    const json flat = file.flatten();
    for (const auto& [field, value] : flat.items()) {
      if (!value.is_number()) continue;
      for (const json& number : {json(0), json(-1), json(1), json(3), json(5e-324), json(1e-30),
                                 json(1e30), json(1e299), json(1 << 30)}) {
        SCOPED_TRACE(field + ": " + number.dump());
        json changed = flat;
        changed[field] = number;
        accepted += runs(changed.unflatten()) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace elixir
