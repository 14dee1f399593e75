#pragma once

#include <cstdint>

namespace elixir {

// How many fork()s lie between this process and the program's first call of it: an object that
// remembers the number knows in a child that it is its parent's. No system call. Any thread.
uint32_t forks();

}  // namespace elixir
