#pragma once

#include <cstdint>

namespace elixir::test {

// A TCP port of 127.0.0.1 for this program to listen on. It is held until the program ends. Nobody
// else can bind it, except with SO_REUSEADDR, as listeners do.
uint16_t unused_port();

}  // namespace elixir::test
