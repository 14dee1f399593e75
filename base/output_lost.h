#pragma once

#include "base/status.h"

namespace elixir {

// kResourceExhausted: a program could not write lines to standard output. `failure`: the errno, or
// 0 where it is not known.
Status output_lost(int failure);

}  // namespace elixir
