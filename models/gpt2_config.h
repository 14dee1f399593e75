#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elixir {

// The size of a GPT-2. Knows the model's parameters without building it and without LibTorch, so
// that planning a model of 20 B parameters costs microseconds.
struct Gpt2Config {
  std::string name;
  int64_t vocabulary = 0;  // 256: tokens are bytes
  int64_t context = 0;     // the longest sequence, in tokens
  int64_t width = 0;
  int64_t layers = 0;
  int64_t heads = 0;  // divides width
  double lr = 0;      // the peak learning rate that train_gpt2 takes by default

  int64_t head_width() const { return width / heads; }
};

// One parameter: the name and the shape that Hugging Face's GPT2LMHeadModel gives it. Weights of
// attention and MLP are stored [in, out], as by its Conv1D. The output projection is
// transformer.wte.weight itself and is not listed twice.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;

  int64_t numel() const;
};

// nano, small, medium, 1b, 4b, 10b, 15b, 20b: smallest first.
//   nano           bytes as tokens; 3.26 M parameters, which two CPU cores train in minutes
//   small, medium  OpenAI's 124 M and 355 M
//   1b             1.11 B: 20 layers of width 2048
//   4b ... 20b     Elixir (arXiv 2212.05339 v2), Table 6, with OpenAI's vocabulary and context
const std::vector<Gpt2Config>& gpt2_configs();

// The names alone, in the same order.
std::vector<std::string> gpt2_names();

// kInvalidArgument with the nearest known name when there is no such model.
Result<Gpt2Config> gpt2_config(std::string_view name);

// Every parameter in the order in which models/gpt2.h registers them.
std::vector<ParameterShape> gpt2_parameters(const Gpt2Config& config);

// The sum over gpt2_parameters().
int64_t gpt2_numel(const Gpt2Config& config);

}  // namespace elixir
