#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace elixir {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{
    {"", 1.0},
    {"B", 1.0},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"KiB", 1024.0},
    {"MiB", 1048576.0},
    {"GiB", 1073741824.0},
    {"TiB", 1099511627776.0},
}};

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() && std::isfinite(number) && number >= 0) {
    while (*end == ' ') ++end;
    for (const auto& [unit, factor] : kUnits) {
      if (unit == end && number * factor < 1e18) return static_cast<uint64_t>(number * factor);
    }
  }
  return error(Code::kInvalidArgument,
               "'{}' is not a size in bytes; write it as 512MiB, 40GiB or a plain number", text);
}

std::optional<double> parse_large_count(std::string_view text, double least, double most) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double factor = unit.empty()  ? 1
                        : unit == "M" ? 1e6
                        : unit == "B" ? 1e9
                        : unit == "T" ? 1e12
                                      : 0;
  const double count = number * factor;
  if (failure != std::errc() || !(count >= least && count <= most)) return std::nullopt;
  return count;
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = larger;
  }
  return fmt::format("{:.2f} {}", value, unit);
}

}  // namespace elixir
