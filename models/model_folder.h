#pragma once

// The folder from which elixir-generate reads a model.

#include <functional>
#include <string>

#include "base/status.h"

namespace elixir {

// The folder itself if it holds a model, else the newest of its checkpoints. kBadInput: there is
// neither.
Result<std::string> model_folder(const std::string& folder);

// Calls `use` with model_folder() and the number of the try. A run that writes there may remove the
// checkpoint while `use` opens it. So if `use` throws and the checkpoint is gone, tries again with
// the newest one. Throws the error of `use`, or kBadInput.
void use_model_folder(const std::string& folder,
                      const std::function<void(const std::string& chosen, int tries)>& use);

}  // namespace elixir
