#include "planner/models/model_request.h"

#include <sys/stat.h>

#include "base/text_file.h"
#include "base/units.h"

namespace elixir::planner {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

Result<std::string> read_config(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return errno_status(Code::kBadInput, "--config " + path);
  if (!S_ISREG(about.st_mode) || static_cast<uint64_t>(about.st_size) > kMaxConfigBytes) {
    return error(Code::kBadInput,
                 "--config {}: it must be a config.json: an ordinary file of at most {}", path,
                 format_bytes(kMaxConfigBytes));
  }
  return read_text_file(path);
}

Result<TransformerConfig> named_config(const ModelRequest& request) {
  if (request.model.empty() == request.config_path.empty()) {
    return error(Code::kInvalidArgument, "give one of --model and --config (--model gpt2-10b)");
  }
  if (!request.model.empty()) return transformer_config(request.model);
  const Result<std::string> text = read_config(request.config_path);
  if (!text.ok()) return text.status();
  Result<TransformerConfig> config = transformer_from_config_json(*text);
  if (config.ok()) return config;
  return error(config.status().code(), "--config {}: {}", request.config_path,
               config.status().message());
}

}  // namespace

Result<TransformerConfig> config_of(const ModelRequest& request) {
  Result<TransformerConfig> config = named_config(request);
  if (!config.ok() || request.layers == 0 || request.layers == config->layers) return config;
  config->layers = request.layers;
  config->name += fmt::format(" with {} layer{}", request.layers, request.layers == 1 ? "" : "s");
  return config;
}

}  // namespace elixir::planner
