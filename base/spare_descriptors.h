#pragma once

#include <cstdint>

#include "base/status.h"

namespace elixir {

// Descriptors of a ZeroMQ context with one socket and one connection, and a few more.
inline constexpr uint32_t kZmqDescriptors = 10;

// Whether this process can have so many descriptors more at once; kResourceExhausted otherwise. For
// libraries that end the process, or wait forever, if they cannot have theirs: libzmq.
Status check_spare_descriptors(uint32_t descriptors);

}  // namespace elixir
