#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace elixir {

// The names in a folder without "." and "..", in no order. Empty, and errno says why, where the
// folder cannot be opened or read.
//
// elixird uses this and not std::filesystem::directory_iterator: libstdc++ allocates in functions
// of it that are noexcept, so that a lack of memory there ends the process.
std::optional<std::vector<std::string>> folder_names(const std::string& path);
// The same of an open folder. Its reading position is used.
std::optional<std::vector<std::string>> folder_names(UniqueFd folder);

}  // namespace elixir
