#include "ctl/model_source.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <optional>

#include "base/units.h"
#include "planner/estimate/estimate.h"
#include "planner/estimate/stored_model.h"
#include "planner/models/config_json.h"
#include "planner/models/stored_type.h"

namespace elixir::ctl {
namespace {

Result<uint64_t> parse_params(const std::string& text) {
  const std::optional<double> count =
      parse_large_count(text, 0.5, static_cast<double>(planner::kMaxParams));
  if (count) return static_cast<uint64_t>(std::round(*count));
  return error(Code::kInvalidArgument,
               "--params {}: it must be a number of parameters from 1 to 1e15, as 7.5e9 or 7.5B",
               text);
}

SizedModel source_of(std::string name, const std::vector<planner::NamedShape>& parameters) {
  SizedModel source{.name = std::move(name)};
  for (const planner::NamedShape& parameter : parameters) {
    // Sums of foreign sizes must not wrap; what is too large stays so.
    source.params = std::min(source.params + parameter.numel(), planner::kMaxParams + 1);
    source.largest_param = std::max(source.largest_param, parameter.numel());
  }
  return source;
}

SizedModel source_of(const planner::TransformerConfig& config) {
  SizedModel source = source_of(config.name, planner::transformer_parameters(config));
  source.context = config.context;
  source.shape = {static_cast<uint64_t>(config.width), static_cast<uint64_t>(config.layers)};
  return source;
}

Result<SizedModel> from_safetensors(const std::string& path) {
  const Result<planner::StoredModel> model = planner::read_stored_model(path);
  if (!model.ok())
    return error(model.status().code(), "--safetensors {}", model.status().message());
  if (model->buffers > 0) {
    std::cerr << fmt::format("elixirctl: {}: left out {} tensors ({}) that are not parameters\n",
                             path, model->buffers, format_bytes(model->buffer_bytes));
  }
  SizedModel source = source_of(path, model->parameters);
  source.quantised = model->quantised;
  return source;
}

}  // namespace

void add_source(CLI::App& command, ModelSource& source) {
  command.add_option("--params", source.params, "The number of parameters, as 7.5e9 or 7.5B");
  command.add_option("--model", source.model.model, "A known model, as gpt2-10b");
  command.add_option("--config", source.model.config_path, "A Hugging Face config.json");
  command.add_option(
      "--safetensors", source.safetensors,
      "A model's folder, a .safetensors file or a model.safetensors.index.json; only headers are "
      "read");
}

void take_stored_type(const CLI::App& command, planner::ModelRequest& model) {
  if (model.config_path.empty() || command.get_option("--dtype")->count() > 0) return;
  model.dtype = planner::stored_type(model.config_path).value_or(model.dtype);
}

Result<SizedModel> find_source(const ModelSource& source) {
  const planner::ModelRequest& model = source.model;
  const std::string* const given[] = {&source.params, &model.model, &model.config_path,
                                      &source.safetensors};
  const auto count = std::count_if(std::begin(given), std::end(given),
                                   [](const std::string* text) { return !text->empty(); });
  if (count != 1) {
    return error(Code::kInvalidArgument,
                 "{} of --params, --model, --config and --safetensors: give exactly one", count);
  }
  if (!source.safetensors.empty()) return from_safetensors(source.safetensors);
  if (source.params.empty()) {
    const Result<planner::TransformerConfig> config = planner::config_of(model);
    if (!config.ok()) return config.status();
    return source_of(*config);
  }
  const Result<uint64_t> params = parse_params(source.params);
  if (!params.ok()) return params.status();
  return SizedModel{.params = *params};
}

void say_unused_fields(const std::string& config_path) {
  if (config_path.empty()) return;
  const std::string path = planner::config_path(config_path);
  const Result<std::string> text = planner::read_config_file(path);
  const std::string line = text.ok() ? planner::unused_fields_line(path, *text) : "";
  if (!line.empty()) std::cerr << "elixirctl: " << line << std::endl;
}

}  // namespace elixir::ctl
