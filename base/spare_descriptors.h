#pragma once

#include <cstdint>

#include "base/status.h"

namespace elixir {

// Descriptors of a ZeroMQ context with one socket and one connection, and a few more.
inline constexpr uint32_t kZmqDescriptors = 10;

// Checks that this process can open `descriptors` more at the same time; kResourceExhausted
// otherwise. For libraries such as libzmq, which end the process or wait forever if they cannot
// open theirs.
Status check_spare_descriptors(uint32_t descriptors);

}  // namespace elixir
