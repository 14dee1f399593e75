#include "models/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "models/evaluation.h"
#include "models/mix_bits.h"

namespace elixir {
namespace {

// Of the last of them that the model takes.
at::Tensor logits_after(Decoder& model, const std::vector<int64_t>& tokens,
                        const GenerateOptions& options) {
  const auto count = std::min(static_cast<int64_t>(tokens.size()), model.config().context);
  at::Tensor inputs = at::empty({1, count}, at::TensorOptions().dtype(at::kLong));
  std::copy(tokens.end() - count, tokens.end(), inputs.data_ptr<int64_t>());
  if (options.to_device) inputs = options.to_device(inputs);
  return model.forward(inputs).select(1, count - 1).select(0, 0).to(at::kCPU).to(at::kFloat);
}

}  // namespace

int64_t choose_token(const at::Tensor& logits, const GenerateOptions& options,
                     at::Generator& generator) {
  if (options.temperature <= 0) return logits.argmax().item<int64_t>();
  const int64_t vocabulary = logits.size(0);
  const int64_t count = options.top_k > 0 ? std::min(options.top_k, vocabulary) : vocabulary;
  // In FP64, as a small temperature makes large numbers of small differences.
  const auto [best, tokens] = (logits.to(at::kDouble) / options.temperature).topk(count);
  const at::Tensor chosen = at::multinomial(best.softmax(0), 1, /*replacement=*/false, generator);
  return tokens[chosen.item<int64_t>()].item<int64_t>();
}

Result<std::vector<int64_t>> generate(Decoder& model, std::vector<int64_t> tokens,
                                      const GenerateOptions& options) {
  ELIXIR_CHECK(!tokens.empty(), "nothing to continue");
  const at::NoGradGuard no_grad;
  const Evaluation evaluation(model);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(mix_bits(options.seed));
  for (int64_t i = 0; i < options.length; ++i) {
    const at::Tensor logits = logits_after(model, tokens, options);
    if (!std::isfinite(logits.max().item<double>())) {  // NaN where one of them is
      return error(
          Code::kBadInput,
          "the model's outputs are not numbers (NaN or infinite), as those of weights that "
          "have diverged are: use an older checkpoint");
    }
    const int64_t token = choose_token(logits, options, generator);
    tokens.push_back(token);
    if (options.on_token && !options.on_token(token)) break;
  }
  return tokens;
}

}  // namespace elixir
