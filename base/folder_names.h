#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace elixir {

// Returns the names in a folder without "." and "..", in no order. If the folder cannot be opened
// or read, returns nothing, and errno says why.
//
// elixird calls this instead of std::filesystem::directory_iterator. In libstdc++, noexcept
// functions of that iterator allocate. If memory ran out there, the process would end.
std::optional<std::vector<std::string>> folder_names(const std::string& path);
// Lists an open folder, from its reading position on, and closes it.
std::optional<std::vector<std::string>> folder_names(UniqueFd folder);

}  // namespace elixir
