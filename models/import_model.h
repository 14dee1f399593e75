#pragma once

// The model folder for which states are imported, compared with Elixir's own models.

#include <map>
#include <string>

#include "base/status.h"
#include "checkpoint/stored_folder.h"
#include "models/adam_file.h"

namespace elixir {

struct ImportModel {
  checkpoints::StoredFolder folder;  // its parameters have the names in Elixir's module
  // Maps the folder's names to Elixir's where they differ: published GPT-2s do not have the prefix
  // "transformer.".
  std::map<std::string, std::string> renamed = {};
};

// Opens the folder. Leaves out a copy of a tied embedding. kInvalidArgument: the folder already has
// optimizer states. kBadInput: it is not a model's folder. If Elixir knows the type in its
// config.json, kBadInput also means errors of --init: Elixir's models do not compute such a
// configuration, or the tensors do not fit it.
Result<ImportModel> open_import_model(const std::string& path);

// Adam's states by the names in Elixir's module. The file may have either the folder's names or
// Elixir's. kBadInput: a parameter has states under both names.
Result<std::map<std::string, AdamStates>> by_own_names(
    const std::map<std::string, AdamStates>& states,
    const std::map<std::string, std::string>& renamed);

}  // namespace elixir
