#pragma once

#include <cstddef>
#include <cstdint>

namespace elixir {

// Host memory that copies to and from the device read and write, mapped for writing.
struct HostRange {
  const std::byte* data;
  uint64_t bytes;
  // No copy crosses a multiple of it; 0: copies may cross any place.
  uint64_t slot_bytes = 0;
};

}  // namespace elixir
