#include "models/import_model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/text_file.h"
#include "checkpoint/load_plan.h"
#include "planner/models/config_json.h"
#include "planner/models/transformer_config.h"

namespace elixir {
namespace {

using checkpoints::StoredFolder;
using checkpoints::StoredTensor;
using checkpoints::WantedParameter;

// The model's sizes; none: it is of a program's own, which knows what it computes.
using KnownConfig = std::optional<planner::TransformerConfig>;
Result<KnownConfig> known_config(const StoredFolder& folder) {
  const Result<std::string> text = read_stored_file(folder, "config.json", kMaxTextFileBytes);
  if (!text.ok()) return KnownConfig();
  const Result<planner::TransformerConfig> config = planner::transformer_from_config_json(*text);
  const Status computed = planner::check_computed(*text);
  if (config.ok() && computed.ok()) return KnownConfig(*config);
  if (!planner::has_known_model_type(*text)) return KnownConfig();
  return error(
      Code::kBadInput,
      "{}: {}; where a program of your own computes it, take config.json out of the folder",
      folder.path, (config.ok() ? computed : config.status()).message());
}

}  // namespace

Result<ImportModel> open_import_model(const std::string& path) {
  Result<StoredFolder> folder = checkpoints::open_stored_folder(path);
  if (!folder.ok()) return folder.status();
  ELIXIR_RETURN_IF_ERROR(checkpoints::check_has_model(*folder));
  if (folder->manifest && folder->manifest->optimizer_states) {
    return error(Code::kInvalidArgument,
                 "{} is a checkpoint with optimizer states already: give a model's folder", path);
  }
  const Result<KnownConfig> config = known_config(*folder);
  if (!config.ok()) return config.status();
  ImportModel model{.folder = std::move(*folder)};
  if (!*config) return model;
  std::vector<WantedParameter> wanted;
  for (const planner::NamedShape& parameter : planner::transformer_parameters(**config)) {
    wanted.push_back({parameter.name, parameter.shape});
  }
  const Result<checkpoints::LoadPlan> plan =
      checkpoints::plan_load(model.folder, wanted, {.states = false});
  if (!plan.ok()) return plan.status();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (plan->stored_names[i] == wanted[i].name) continue;
    model.renamed.emplace(plan->stored_names[i], wanted[i].name);
  }
  std::erase_if(model.folder.model, [&](const StoredTensor& tensor) {
    return std::find(plan->copies.begin(), plan->copies.end(), tensor.name) != plan->copies.end();
  });
  for (StoredTensor& tensor : model.folder.model) {
    const auto name = model.renamed.find(tensor.name);
    if (name != model.renamed.end()) tensor.name = name->second;
  }
  return model;
}

Result<std::map<std::string, AdamStates>> by_own_names(
    const std::map<std::string, AdamStates>& states,
    const std::map<std::string, std::string>& renamed) {
  std::map<std::string, AdamStates> own;
  for (const auto& [name, of] : states) {
    const auto other = renamed.find(name);
    const std::string& called = other == renamed.end() ? name : other->second;
    if (own.emplace(called, of).second) continue;
    return error(Code::kBadInput, "it has two states of '{}'", called);
  }
  return own;
}

}  // namespace elixir
