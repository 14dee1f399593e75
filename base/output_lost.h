#pragma once

#include "base/status.h"

namespace elixir {

// kResourceExhausted: a program could not write lines to standard output. Pass the errno as
// `failure`, or 0 if it is not known.
Status output_lost(int failure);

}  // namespace elixir
