#include "models/gpt2_config.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>

#include "base/nearest.h"

namespace elixir {
namespace {

constexpr int64_t kOpenAiVocabulary = 50257;
constexpr int64_t kOpenAiContext = 1024;

Gpt2Config openai_like(const char* name, int64_t width, int64_t layers, int64_t heads, double lr) {
  return {name, kOpenAiVocabulary, kOpenAiContext, width, layers, heads, lr};
}

void append_block(const Gpt2Config& config, int64_t layer, std::vector<ParameterShape>& all) {
  const int64_t w = config.width;
  const std::string block = fmt::format("transformer.h.{}.", layer);
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    all.push_back({block + name, std::move(shape)});
  };
  add("ln_1.weight", {w});
  add("ln_1.bias", {w});
  add("attn.c_attn.weight", {w, 3 * w});
  add("attn.c_attn.bias", {3 * w});
  add("attn.c_proj.weight", {w, w});
  add("attn.c_proj.bias", {w});
  add("ln_2.weight", {w});
  add("ln_2.bias", {w});
  add("mlp.c_fc.weight", {w, 4 * w});
  add("mlp.c_fc.bias", {4 * w});
  add("mlp.c_proj.weight", {4 * w, w});
  add("mlp.c_proj.bias", {w});
}

}  // namespace

int64_t ParameterShape::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

const std::vector<Gpt2Config>& gpt2_configs() {
  // Learning rates: nano's was measured (steps of 1024 tokens; from 2e-3 on
  // the loss stays on a plateau near 3 for longer); the others are those
  // of GPT-3 (Brown et al., 2020, Table 2.1) for the nearest size.
  static const std::vector<Gpt2Config> configs = {
      {"nano", 256, 128, 256, 4, 4, 1e-3},       openai_like("small", 768, 12, 12, 6e-4),
      openai_like("medium", 1024, 24, 16, 3e-4), openai_like("1b", 2048, 20, 16, 2e-4),
      openai_like("4b", 3072, 32, 24, 1.6e-4),   openai_like("10b", 4096, 48, 32, 1.2e-4),
      openai_like("15b", 8192, 18, 64, 1e-4),    openai_like("20b", 8192, 24, 64, 1e-4),
  };
  return configs;
}

std::vector<std::string> gpt2_names() {
  std::vector<std::string> names;
  for (const Gpt2Config& config : gpt2_configs()) names.push_back(config.name);
  return names;
}

Result<Gpt2Config> gpt2_config(std::string_view name) {
  for (const Gpt2Config& config : gpt2_configs()) {
    if (config.name == name) return config;
  }
  const std::vector<std::string> names = gpt2_names();
  const std::string nearest = nearest_name(name, names);
  return error(Code::kInvalidArgument, "no model is called '{}'{}; known: {}", name,
               nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest),
               fmt::join(names, ", "));
}

std::vector<ParameterShape> gpt2_parameters(const Gpt2Config& config) {
  std::vector<ParameterShape> all;
  all.push_back({"transformer.wte.weight", {config.vocabulary, config.width}});
  all.push_back({"transformer.wpe.weight", {config.context, config.width}});
  for (int64_t layer = 0; layer < config.layers; ++layer) append_block(config, layer, all);
  all.push_back({"transformer.ln_f.weight", {config.width}});
  all.push_back({"transformer.ln_f.bias", {config.width}});
  return all;
}

int64_t gpt2_numel(const Gpt2Config& config) {
  int64_t numel = 0;
  for (const ParameterShape& parameter : gpt2_parameters(config)) numel += parameter.numel();
  return numel;
}

}  // namespace elixir
