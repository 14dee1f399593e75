#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

// "40GiB", "512MiB", "1.5GB", "4096" to bytes. Units: B, KB, MB, GB, TB (powers of 1000), KiB,
// MiB, GiB, TiB (powers of 1024).
Result<uint64_t> parse_bytes(std::string_view text);

// "1.50 GiB": about three significant digits, for people.
std::string format_bytes(uint64_t bytes);

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace elixir
