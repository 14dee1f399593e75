#pragma once

#include <cstdint>

namespace elixir {

// The number of fork()s between this process and the program's first call of this function. An
// object that remembers the number can tell in a child that it belongs to the parent. No system
// call. Any thread may call it.
uint32_t forks();

}  // namespace elixir
