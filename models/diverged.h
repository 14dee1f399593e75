#pragma once

#include <torch/nn/module.h>

#include <string>

namespace elixir {

// The first parameter, in the module's order, with values that are not finite, and how many of how
// many: "'h.0.attn.weight', 3 of 4096 values". "": there is none, or no memory to look. It gathers
// every chunk once, so all ranks call it.
std::string first_not_finite(const torch::nn::Module& model);

}  // namespace elixir
