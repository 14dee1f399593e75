#include "planner/models/transformer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>

#include "base/nearest.h"

namespace elixir::planner {
namespace {

// The rows of OPT's embed_positions that no position uses: positions are counted from 2.
constexpr int64_t kOptPositionOffset = 2;

TransformerConfig gpt2(const char* name, int64_t width, int64_t layers, int64_t heads, double lr) {
  return {.name = name,
          .family = Family::kGpt2,
          .vocabulary = 50257,
          .context = 1024,
          .width = width,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .mlp_width = 4 * width,
          .tied = true,
          .lr = lr};
}

TransformerConfig opt(const char* name, int64_t width, int64_t layers, int64_t heads, double lr) {
  TransformerConfig config = gpt2(name, width, layers, heads, lr);
  config.family = Family::kOpt;
  config.vocabulary = 50272;
  config.context = 2048;
  return config;
}

// With the smallest multiple of 256 as MLP's width that is no less than 8 / 3 of its own.
TransformerConfig llama(const char* name, int64_t width, int64_t layers, int64_t heads, double lr) {
  TransformerConfig config = gpt2(name, width, layers, heads, lr);
  config.family = Family::kLlama;
  config.vocabulary = 32000;
  config.context = 2048;
  config.mlp_width = (8 * width / 3 + 255) / 256 * 256;
  config.tied = false;
  return config;
}

// Bytes as tokens.
TransformerConfig nano(TransformerConfig config) {
  config.vocabulary = 256;
  config.context = 128;
  return config;
}

TransformerConfig llama_100m() {
  TransformerConfig config = llama("llama-100m", 768, 12, 12, 6e-4);
  config.vocabulary = 8192;
  return config;
}

TransformerConfig llama2_70b() {
  TransformerConfig config = llama("llama2-70b", 8192, 80, 64, 1.5e-4);
  config.context = 4096;
  config.kv_heads = 8;
  config.mlp_width = 28672;
  return config;
}

// Learning rates: gpt2-nano's was measured (steps of 1024 tokens; from 2e-3 on the loss stays on a
// plateau near 3 for longer), and the other nanos take it. GPT-2's and llama-100m's are those of
// GPT-3 (Brown et al., 2020, table 2.1) for the nearest size, OPT's and Llama's their papers'.
//
// OPT's 350 M is left out: alone of its family it normalises after each block and projects its
// embeddings.
const std::vector<TransformerConfig>& known() {
  static const std::vector<TransformerConfig> all = {
      nano(gpt2("gpt2-nano", 256, 4, 4, 1e-3)),
      gpt2("gpt2-small", 768, 12, 12, 6e-4),
      gpt2("gpt2-medium", 1024, 24, 16, 3e-4),
      gpt2("gpt2-large", 1280, 36, 20, 2.5e-4),
      gpt2("gpt2-xl", 1600, 48, 25, 2e-4),
      gpt2("gpt2-1b", 2048, 20, 16, 2e-4),
      gpt2("gpt2-4b", 3072, 32, 24, 1.6e-4),
      gpt2("gpt2-10b", 4096, 48, 32, 1.2e-4),
      gpt2("gpt2-15b", 8192, 18, 64, 1e-4),
      gpt2("gpt2-20b", 8192, 24, 64, 1e-4),
      nano(opt("opt-nano", 256, 4, 4, 1e-3)),
      opt("opt-125m", 768, 12, 12, 6e-4),
      opt("opt-1.3b", 2048, 24, 32, 2e-4),
      opt("opt-2.7b", 2560, 32, 32, 1.6e-4),
      opt("opt-6.7b", 4096, 32, 32, 1.2e-4),
      opt("opt-13b", 5120, 40, 40, 1e-4),
      opt("opt-30b", 7168, 48, 56, 1e-4),
      opt("opt-66b", 9216, 64, 72, 8e-5),
      opt("opt-175b", 12288, 96, 96, 1.2e-4),
      nano(llama("llama-nano", 256, 4, 4, 1e-3)),
      llama_100m(),
      llama("llama-7b", 4096, 32, 32, 3e-4),
      llama("llama-13b", 5120, 40, 40, 3e-4),
      llama("llama-33b", 6656, 60, 52, 1.5e-4),
      llama("llama-65b", 8192, 80, 64, 1.5e-4),
      llama2_70b(),
  };
  return all;
}

// Appends parameters whose names begin alike.
class Module {
 public:
  Module(std::string prefix, std::vector<NamedShape>& all)
      : prefix_(std::move(prefix)), all_(all) {}

  void add(const char* name, std::vector<int64_t> shape, bool shared = false) {
    all_.push_back({prefix_ + name, std::move(shape), shared});
  }
  // torch.nn.Linear with a bias: [out, in] and [out].
  void add_linear(const char* name, int64_t in, int64_t out) {
    all_.push_back({fmt::format("{}{}.weight", prefix_, name), {out, in}});
    all_.push_back({fmt::format("{}{}.bias", prefix_, name), {out}});
  }
  void add_layer_norm(const char* name, int64_t width) {
    all_.push_back({fmt::format("{}{}.weight", prefix_, name), {width}});
    all_.push_back({fmt::format("{}{}.bias", prefix_, name), {width}});
  }
  // Conv1D of Hugging Face's GPT-2: [in, out] and [out].
  void add_conv1d(const char* name, int64_t in, int64_t out) {
    all_.push_back({fmt::format("{}{}.weight", prefix_, name), {in, out}});
    all_.push_back({fmt::format("{}{}.bias", prefix_, name), {out}});
  }

 private:
  const std::string prefix_;
  std::vector<NamedShape>& all_;
};

void append_gpt2(const TransformerConfig& config, std::vector<NamedShape>& all) {
  const int64_t w = config.width;
  Module model("transformer.", all);
  model.add("wte.weight", {config.vocabulary, w}, config.tied);
  model.add("wpe.weight", {config.context, w});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    Module block(fmt::format("transformer.h.{}.", layer), all);
    block.add_layer_norm("ln_1", w);
    block.add_conv1d("attn.c_attn", w, 3 * w);
    block.add_conv1d("attn.c_proj", w, w);
    block.add_layer_norm("ln_2", w);
    block.add_conv1d("mlp.c_fc", w, config.mlp_width);
    block.add_conv1d("mlp.c_proj", config.mlp_width, w);
  }
  model.add_layer_norm("ln_f", w);
}

// The decoder's last norm is registered before its layers.
void append_opt(const TransformerConfig& config, std::vector<NamedShape>& all) {
  const int64_t w = config.width;
  Module decoder("model.decoder.", all);
  decoder.add("embed_tokens.weight", {config.vocabulary, w}, config.tied);
  decoder.add("embed_positions.weight", {config.context + kOptPositionOffset, w});
  decoder.add_layer_norm("final_layer_norm", w);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    Module block(fmt::format("model.decoder.layers.{}.", layer), all);
    for (const char* projection : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
      block.add_linear(fmt::format("self_attn.{}", projection).c_str(), w, w);
    }
    block.add_layer_norm("self_attn_layer_norm", w);
    block.add_linear("fc1", w, config.mlp_width);
    block.add_linear("fc2", config.mlp_width, w);
    block.add_layer_norm("final_layer_norm", w);
  }
}

void append_attention(const TransformerConfig& config, Module& block) {
  const int64_t w = config.width, head = config.head_numel();
  const int64_t q_width = head * config.heads, kv_width = head * config.kv_heads;
  if (config.fused_projections) {
    block.add("self_attn.o_proj.weight", {w, q_width});
    block.add("self_attn.qkv_proj.weight", {q_width + 2 * kv_width, w});
    return;
  }
  const std::pair<const char*, int64_t> projections[] = {
      {"q_proj", q_width}, {"k_proj", kv_width}, {"v_proj", kv_width}};
  for (const auto& [name, out] : projections) {
    block.add(fmt::format("self_attn.{}.weight", name).c_str(), {out, w});
    if (config.qkv_bias) block.add(fmt::format("self_attn.{}.bias", name).c_str(), {out});
  }
  block.add("self_attn.o_proj.weight", {w, q_width});
  if (config.o_bias) block.add("self_attn.o_proj.bias", {w});
  if (!config.qk_norm) return;
  block.add("self_attn.q_norm.weight", {config.whole_qk_norm ? q_width : head});
  block.add("self_attn.k_norm.weight", {config.whole_qk_norm ? kv_width : head});
}

void append_mlp(const TransformerConfig& config, Module& block) {
  const int64_t w = config.width, inner = config.mlp_width;
  if (config.experts > 0) {
    block.add("block_sparse_moe.gate.weight", {config.experts, w});
    for (int64_t i = 0; i < config.experts; ++i) {
      const std::string expert = fmt::format("block_sparse_moe.experts.{}.", i);
      block.add((expert + "w1.weight").c_str(), {inner, w});
      block.add((expert + "w2.weight").c_str(), {w, inner});
      block.add((expert + "w3.weight").c_str(), {inner, w});
    }
    return;
  }
  const auto add = [&](const char* name, int64_t in, int64_t out) {
    block.add(fmt::format("mlp.{}.weight", name).c_str(), {out, in});
    if (config.mlp_bias) block.add(fmt::format("mlp.{}.bias", name).c_str(), {out});
  };
  if (config.fused_projections) {
    add("gate_up_proj", w, 2 * inner);
  } else {
    add("gate_proj", w, inner);
    add("up_proj", w, inner);
  }
  add("down_proj", inner, w);
}

// Norms have no biases, and rotary embeddings no parameters.
void append_llama(const TransformerConfig& config, std::vector<NamedShape>& all) {
  const int64_t w = config.width;
  Module model("model.", all);
  model.add("embed_tokens.weight", {config.vocabulary, w}, config.tied);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    Module block(fmt::format("model.layers.{}.", layer), all);
    append_attention(config, block);
    append_mlp(config, block);
    if (!config.norms_behind) block.add("input_layernorm.weight", {w});
    block.add("post_attention_layernorm.weight", {w});
    if (config.four_norms) block.add("pre_feedforward_layernorm.weight", {w});
    if (config.four_norms || config.norms_behind)
      block.add("post_feedforward_layernorm.weight", {w});
  }
  model.add("norm.weight", {w});
}

void append_neox(const TransformerConfig& config, std::vector<NamedShape>& all) {
  const int64_t w = config.width;
  Module model("gpt_neox.", all);
  model.add("embed_in.weight", {config.vocabulary, w}, config.tied);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    Module block(fmt::format("gpt_neox.layers.{}.", layer), all);
    block.add_layer_norm("input_layernorm", w);
    block.add_layer_norm("post_attention_layernorm", w);
    const auto add = [&](const char* name, int64_t in, int64_t out) {
      block.add(fmt::format("attention.{}.weight", name).c_str(), {out, in});
      if (config.qkv_bias) block.add(fmt::format("attention.{}.bias", name).c_str(), {out});
    };
    add("query_key_value", w, 3 * w);
    add("dense", w, w);
    block.add_linear("mlp.dense_h_to_4h", w, config.mlp_width);
    block.add_linear("mlp.dense_4h_to_h", config.mlp_width, w);
  }
  model.add_layer_norm("final_layer_norm", w);
  if (!config.tied) all.push_back({"embed_out.weight", {config.vocabulary, w}});
}

// The head has a bias, too.
void append_phi(const TransformerConfig& config, std::vector<NamedShape>& all) {
  const int64_t w = config.width, kv_width = config.head_numel() * config.kv_heads;
  Module model("model.", all);
  model.add("embed_tokens.weight", {config.vocabulary, w}, config.tied);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    Module block(fmt::format("model.layers.{}.", layer), all);
    block.add_linear("self_attn.q_proj", w, w);
    block.add_linear("self_attn.k_proj", w, kv_width);
    block.add_linear("self_attn.v_proj", w, kv_width);
    block.add_linear("self_attn.dense", w, w);
    block.add_linear("mlp.fc1", w, config.mlp_width);
    block.add_linear("mlp.fc2", config.mlp_width, w);
    block.add_layer_norm("input_layernorm", w);
  }
  model.add_layer_norm("final_layernorm", w);
  if (!config.tied) all.push_back({"lm_head.weight", {config.vocabulary, w}});
  all.push_back({"lm_head.bias", {config.vocabulary}});
}

}  // namespace

uint64_t NamedShape::numel() const {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

std::vector<std::string> transformer_names() {
  std::vector<std::string> names;
  for (const TransformerConfig& config : known()) names.push_back(config.name);
  return names;
}

double lr_of_size(uint64_t numel) {
  struct Row {
    double numel, lr;
  };
  constexpr Row kGpt3[] = {{125e6, 6e-4},   {350e6, 3e-4},   {760e6, 2.5e-4}, {1.3e9, 2e-4},
                           {2.7e9, 1.6e-4}, {6.7e9, 1.2e-4}, {13e9, 1e-4},    {175e9, 6e-5}};
  const auto distance = [&](const Row& row) {
    return std::abs(std::log(static_cast<double>(std::max<uint64_t>(numel, 1)) / row.numel));
  };
  return std::min_element(std::begin(kGpt3), std::end(kGpt3),
                          [&](const Row& a, const Row& b) { return distance(a) < distance(b); })
      ->lr;
}

Result<TransformerConfig> transformer_config(std::string_view name) {
  for (const TransformerConfig& config : known()) {
    if (config.name == name) return config;
  }
  const std::vector<std::string> names = transformer_names();
  const std::string nearest = nearest_name(name, names);
  return error(Code::kInvalidArgument, "no model is called '{}'{}; known: {}", name,
               nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest),
               fmt::join(names, ", "));
}

std::vector<NamedShape> transformer_parameters(const TransformerConfig& config) {
  std::vector<NamedShape> all;
  switch (config.family) {
    case Family::kGpt2:
      append_gpt2(config, all);
      break;
    case Family::kOpt:
      append_opt(config, all);
      break;
    case Family::kLlama:
      append_llama(config, all);
      break;
    case Family::kNeoX:
      append_neox(config, all);
      return all;
    case Family::kPhi:
      append_phi(config, all);
      return all;
  }
  if (!config.tied) all.push_back({"lm_head.weight", {config.vocabulary, config.width}});
  return all;
}

uint64_t transformer_numel(const TransformerConfig& config) {
  uint64_t numel = 0;
  for (const NamedShape& parameter : transformer_parameters(config)) numel += parameter.numel();
  return numel;
}

}  // namespace elixir::planner
