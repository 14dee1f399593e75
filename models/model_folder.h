#pragma once

// The folder of which elixir-generate reads a model.

#include <functional>
#include <string>

#include "base/status.h"

namespace elixir {

// The folder itself, where it has a model; else the newest of its checkpoints. kBadInput: none.
Result<std::string> model_folder(const std::string& folder);

// Gives model_folder() to `use`, and says how often it has. The run that writes there may have
// removed the checkpoint while `use` opened it: where `use` throws and it is gone, the newest is
// looked for again. Throws what `use` does, and kBadInput.
void use_model_folder(const std::string& folder,
                      const std::function<void(const std::string& chosen, int tries)>& use);

}  // namespace elixir
