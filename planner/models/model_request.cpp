#include "planner/models/model_request.h"

#include <utility>

#include "checkpoint/hub_cache.h"
#include "planner/models/config_json.h"

namespace elixir::planner {
namespace {

Result<TransformerConfig> named_config(const ModelRequest& request) {
  if (request.model.empty() == request.config_path.empty()) {
    return error(Code::kInvalidArgument, "give one of --model and --config (--model gpt2-10b)");
  }
  if (!request.model.empty()) return transformer_config(request.model);
  const Result<std::string> text = read_config_file(request.config_path);
  if (!text.ok()) {
    return checkpoints::with_download(
        error(text.status().code(), "--config {}", text.status().message()), request.config_path);
  }
  Result<TransformerConfig> config = transformer_from_config_json(*text);
  if (config.ok()) return config;
  return error(config.status().code(), "--config {}: {}", request.config_path,
               config.status().message());
}

}  // namespace

Result<TransformerConfig> config_of(const ModelRequest& request) {
  Result<TransformerConfig> config = named_config(request);
  if (!config.ok() || request.layers == 0 || request.layers == config->layers) return config;
  // With other layers the patterns of windows and of rotary positions go on.
  for (std::vector<bool>* const pattern : {&config->windowed, &config->rotated}) {
    const std::vector<bool> before = std::move(*pattern);
    pattern->clear();
    for (int64_t i = 0; !before.empty() && i < request.layers; ++i) {
      pattern->push_back(before[static_cast<size_t>(i) % before.size()]);
    }
  }
  config->layers = request.layers;
  config->name += fmt::format(" with {} layer{}", request.layers, request.layers == 1 ? "" : "s");
  return config;
}

}  // namespace elixir::planner
