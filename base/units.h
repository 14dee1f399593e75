#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

// "40GiB", "512MiB", "1.5GB", "4096" to bytes. Units: B, KB, MB, GB, TB (powers of 1000), KiB,
// MiB, GiB, TiB (powers of 1024).
Result<uint64_t> parse_bytes(std::string_view text);

// "7.5e9", "7.5B", "350M", "1T": a count in thousands of thousands. Empty for another text, and for
// a count outside of `least` to `most`.
std::optional<double> parse_large_count(std::string_view text, double least, double most);

// "1.50 GiB": about three significant digits, for people.
std::string format_bytes(uint64_t bytes);

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace elixir
