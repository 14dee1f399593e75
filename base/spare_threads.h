#pragma once

#include <cstdint>

#include "base/status.h"

namespace elixir {

// Whether this process can have so many threads more at once; kResourceExhausted otherwise. For
// libraries that do not say when they cannot start theirs but end the process: libzmq.
Status check_spare_threads(uint32_t threads);

// What is said where a thread could not be started.
Status no_threads(const char* cause);

}  // namespace elixir
