#pragma once

#include "base/status.h"

namespace elixir {

// A time that a program may set, else its user, else we: `option` unless 0, the environment
// variable unless unset or empty, `fallback`. kInvalidArgument when the variable is no positive
// number.
Result<double> seconds_setting(double option, const char* variable, double fallback);

}  // namespace elixir
