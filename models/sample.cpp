#include "models/sample.h"

#include <algorithm>

#include "base/throw_error.h"
#include "models/generate.h"
#include "models/random_state.h"
#include "models/token_text.h"
#include "models/train_inputs.h"

namespace elixir {
namespace {

constexpr int64_t kPromptTokens = 16, kLength = 64;
constexpr double kTemperature = 0.8;

}  // namespace

Result<std::string> sample(Decoder& model, const TokenData& data, const TrainOptions& options,
                           int64_t steps, Optimizer& optimizer) {
  const Batch row = value_or_throw(read_batch(data, /*step=*/0, /*first_row=*/0, /*rows=*/1));
  const auto* first = row.inputs.const_data_ptr<int64_t>();
  const std::vector<int64_t> prompt(first, first + std::min(kPromptTokens, data.seq()));
  const at::Device device = optimizer.device();
  const std::string random_numbers = random_state(device);
  const Result<std::vector<int64_t>> tokens = generate(
      model, prompt,
      {.length = kLength,
       .temperature = kTemperature,
       .seed = options.seed + static_cast<uint64_t>(steps),
       .to_device = [&](const at::Tensor& inputs) { return optimizer.to_device(inputs); }});
  value_or_throw(restore_random_state(random_numbers, device));
  if (!tokens.ok()) return tokens.status();
  return shown_tokens(*tokens, options.config.vocabulary, /*quoted=*/true);
}

}  // namespace elixir
