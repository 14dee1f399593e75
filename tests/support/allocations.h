#pragma once

#include <cstdint>

namespace elixir {

// How often this thread has called operator new. A test that calls it links
// elixir_counted_allocations, which replaces the operator in its program.
uint64_t allocations();

}  // namespace elixir
