#pragma once

// The model that states are imported for: a folder, held against what Elixir's models compute.

#include <map>
#include <string>

#include "base/status.h"
#include "checkpoint/stored_folder.h"
#include "models/adam_file.h"

namespace elixir {

struct ImportModel {
  checkpoints::StoredFolder folder;  // its parameters have the names of Elixir's module
  // From the names in the folder, where they are others: published GPT-2s lack "transformer.".
  std::map<std::string, std::string> renamed = {};
};

// kBadInput: no folder of a model; where its config.json is of a type that Elixir knows, also what
// --init refuses: it asks for what Elixir's models do not compute, or its tensors are not those of
// such a model. kInvalidArgument: it has optimizer states already. A copy of a tied embedding is
// left out.
Result<ImportModel> open_import_model(const std::string& path);

// Adam's states by the names of Elixir's module, whichever of the two a file has. kBadInput: one
// has both.
Result<std::map<std::string, AdamStates>> by_own_names(
    const std::map<std::string, AdamStates>& states,
    const std::map<std::string, std::string>& renamed);

}  // namespace elixir
