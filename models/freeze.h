#pragma once

#include <torch/nn/module.h>

#include <string>

#include "base/status.h"

namespace elixir {

// Freezes the parameters whose names match the POSIX extended regular expression: they no longer
// require gradients. Error: kInvalidArgument if the expression is not valid, or if it matches no
// parameter or all.
Status freeze(torch::nn::Module& module, const std::string& expression);

}  // namespace elixir
