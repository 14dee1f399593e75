#pragma once

#include <torch/nn/module.h>

#include <string>

#include "base/status.h"

namespace elixir {

// Parameters whose names the extended regular expression finds require no gradients afterwards.
// kInvalidArgument: the expression is not valid, or it finds no parameter, or all of them.
Status freeze(torch::nn::Module& module, const std::string& expression);

}  // namespace elixir
