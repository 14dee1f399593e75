// config_of_model() of ctl/model_profile.h: apart, since it runs nothing.

#include <sys/stat.h>

#include "base/text_file.h"
#include "base/units.h"
#include "ctl/model_profile.h"

namespace elixir::ctl {
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

}  // namespace

Result<planner::TransformerConfig> config_of_model(const ModelProfileRequest& request) {
  if (!request.model.empty()) return planner::transformer_config(request.model);
  const Result<std::string> text = read_config(request.config_path);
  if (!text.ok()) return text.status();
  Result<planner::TransformerConfig> config = planner::transformer_from_config_json(*text);
  if (config.ok()) return config;
  return error(config.status().code(), "--config {}: {}", request.config_path,
               config.status().message());
}

}  // namespace elixir::ctl
