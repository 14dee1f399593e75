#pragma once

#include "base/status.h"

namespace elixir {

// A time in seconds. It is the program's `option`, or, if that is 0, the user's environment
// variable. If that is unset or empty, it is `fallback`. Returns kInvalidArgument if the variable
// is not a positive number.
Result<double> seconds_setting(double option, const char* variable, double fallback);

}  // namespace elixir
