#pragma once

#include <cstdint>

#include "base/status.h"

namespace elixir {

// Checks that this process can have `threads` more at the same time; kResourceExhausted otherwise.
// For libraries such as libzmq, which end the process without a message if they cannot start
// theirs.
Status check_spare_threads(uint32_t threads);

// The error for a thread that could not be started.
Status no_threads(const char* cause);

}  // namespace elixir
