#include "client/ranks/seconds_setting.h"

#include <cmath>
#include <cstdlib>

namespace elixir {

Result<double> seconds_setting(double option, const char* variable, double fallback) {
  if (option != 0) return option;
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !std::isfinite(seconds) || seconds <= 0) {
    return error(
        Code::kInvalidArgument,
        "the environment variable {}='{}' is not a positive number of seconds (default: {:.0f})",
        variable, text, fallback);
  }
  return seconds;
}

}  // namespace elixir
