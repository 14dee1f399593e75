#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace elixir {

// Training takes this text if there is no --data: the sources of the Python standard library. Every
// machine that built Elixir has them.
inline constexpr uint64_t kDefaultTextBytes = 10'000'000;

// Finds the folder of a Python standard library. Takes the Python from which `.venv` was made
// (`home` in its pyvenv.cfg), if `near` or a folder above it has a .venv. Otherwise takes the
// newest of /usr/local/lib/python3.* and /usr/lib/python3.*. Error: kBadInput if there is none.
Result<std::filesystem::path> find_python_library(const std::filesystem::path& near);

// Lists the library's non-empty .py files, without tests and installed packages. Their sizes add up
// to at most kDefaultTextBytes. Files of the folder itself come first, then those of its packages,
// each sorted by name. The list is equal on all ranks of a node. Error: kBadInput if it is empty.
Result<std::vector<std::string>> python_sources(const std::filesystem::path& library);

// Calls both functions above, with `near` at the running program.
Result<std::vector<std::string>> default_text();

}  // namespace elixir
