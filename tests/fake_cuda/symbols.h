#pragma once

#include <string>
#include <vector>

namespace fake_cuda {

// The functions that return addresses lie in, demangled, of the program's and its libraries' symbol
// tables; those of the fake itself are left out. "library+0xoffset" where a table has none.
std::vector<std::string> symbol_names(void* const* addresses, int n);

// The name without its mangling; as it is where it has none.
std::string demangled(const char* name);

}  // namespace fake_cuda
