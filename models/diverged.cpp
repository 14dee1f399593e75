#include "models/diverged.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace elixir {
namespace {

// How many of a parameter's values are not finite. Takes memory for several copies of it.
std::string count_not_finite(const at::Tensor& parameter) try {
  const int64_t good = at::isfinite(parameter).sum().item<int64_t>();
  return fmt::format("{} of {} values", parameter.numel() - good, parameter.numel());
} catch (const c10::OutOfMemoryError&) {
  return fmt::format("some of {} values", parameter.numel());
}

// What to change, for this run, the likeliest first: "a lower --lr or --clip-norm 1".
std::string remedies(const TrainOptions& options) {
  const Options& run = options.run;
  // An immediate update cannot clip, and has no dynamic scale.
  const bool immediate = run.update == UpdateMode::kImmediate;
  std::vector<std::string> all;
  if (!run.dynamic_loss_scale && run.loss_scale > 1) {
    all.push_back(immediate ? fmt::format("a --loss-scale below {}", run.loss_scale)
                            : "--loss-scale dynamic");
  }
  all.emplace_back("a lower --lr");
  if (run.clip_norm) {
    all.push_back(fmt::format("a --clip-norm below {}", *run.clip_norm));
  } else if (!immediate) {
    all.push_back("--clip-norm 1");
  }
  if (run.dtype == ComputeType::kFp16) all.push_back("--dtype bf16");
  const std::string last = all.back();
  all.pop_back();
  return all.empty() ? last : fmt::format("{} or {}", fmt::join(all, ", "), last);
}

}  // namespace

WeightsLook look_at_weights(const torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  WeightsLook look;
  for (const auto& parameter : model.named_parameters()) {
    if (parameter.value().numel() == 0) continue;
    // A NaN among the values is both.
    const auto [least, greatest] = at::aminmax(parameter.value());
    const double magnitude =
        std::max(std::abs(least.item<double>()), std::abs(greatest.item<double>()));
    if (!std::isfinite(magnitude)) {
      look.first_not_finite =
          fmt::format("'{}', {}", parameter.key(), count_not_finite(parameter.value()));
      return look;
    }
    look.largest = std::max(look.largest, magnitude);
  }
  return look;
}

Status diverged_error(const std::string& cause, const WeightsLook& weights, const std::string& good,
                      const TrainOptions& options) {
  const std::string finding =
      weights.first_not_finite.empty()
          ? fmt::format("all parameters are finite, the largest value is {:.3g}", weights.largest)
          : "the first parameter that is not finite is " + weights.first_not_finite;
  const std::string start =
      good.empty()
          ? "begin again with"
          : fmt::format("continue from {0}: --resume {0}, with another --checkpoints and", good);
  return error(Code::kDiverged, "diverged: {}; {}; {} {}", cause, finding, start,
               remedies(options));
}

}  // namespace elixir
