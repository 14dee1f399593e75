#pragma once

#include <string>
#include <vector>

namespace fake_cuda {

// Demangled names of the functions that contain the return addresses, from the symbol tables of the
// program and its libraries. Functions of the fake itself are left out. A name is
// "library+0xoffset" if a table does not have it.
std::vector<std::string> symbol_names(void* const* addresses, int n);

// The demangled name; a name without mangling is returned unchanged.
std::string demangled(const char* name);

}  // namespace fake_cuda
