#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace elixir {

// The text that training takes when no --data is given, as every machine that built Elixir has it:
// the sources of the Python standard library.
inline constexpr uint64_t kDefaultTextBytes = 10'000'000;

// The standard library's folder of the Python that `.venv` was made from (the `home` of its
// pyvenv.cfg), where .venv is found in `near` or a folder above it; else the newest of
// /usr/local/lib/python3.* and /usr/lib/python3.*. kBadInput when there is none.
Result<std::filesystem::path> find_python_library(const std::filesystem::path& near);

// Its .py files that are not empty, at most kDefaultTextBytes of them together: those of the
// folder itself first, then those of its packages, each in the order of their names; without
// tests and installed packages. Equal on all ranks of a node. kBadInput when there is none.
Result<std::vector<std::string>> python_sources(const std::filesystem::path& library);

// Both, looking near the running program.
Result<std::vector<std::string>> default_text();

}  // namespace elixir
