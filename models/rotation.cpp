#include "models/rotation.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace elixir {
namespace {

using planner::Rotary;
using planner::RotaryKind;

constexpr double kTurn = 2 * std::numbers::pi;

// kDynamic: for a sequence that is longer than the model's own.
double grown_base(const Rotary& rotary, int64_t seq, int64_t head_width) {
  if (rotary.kind != RotaryKind::kDynamic || seq <= rotary.original_context) return rotary.base;
  const double share = static_cast<double>(seq) / static_cast<double>(rotary.original_context);
  const auto width = static_cast<double>(head_width);
  return rotary.base * std::pow(rotary.factor * share - (rotary.factor - 1), width / (width - 2));
}

// The number of the frequency that turns so often within the original context.
double number_of(double turns, const Rotary& rotary, int64_t head_width) {
  const auto context = static_cast<double>(rotary.original_context);
  return static_cast<double>(head_width) * std::log(context / (turns * kTurn)) /
         (2 * std::log(rotary.base));
}

// Which share of each frequency, [head_width / 2], stays as it is; the rest of it is divided.
at::Tensor kept_share(const at::Tensor& frequencies, const Rotary& rotary, int64_t head_width) {
  if (rotary.kind == RotaryKind::kLlama3) {
    const at::Tensor turns = frequencies * (static_cast<double>(rotary.original_context) / kTurn);
    return ((turns - rotary.low_freq_factor) / (rotary.high_freq_factor - rotary.low_freq_factor))
        .clamp(0, 1);
  }
  double first = number_of(rotary.beta_fast, rotary, head_width);
  double last = number_of(rotary.beta_slow, rotary, head_width);
  if (rotary.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(head_width - 1));
  if (first == last) last += 0.001;  // as transformers does
  const at::Tensor numbers = at::arange(head_width / 2, frequencies.options());
  return 1 - ((numbers - first) / (last - first)).clamp(0, 1);
}

at::Tensor frequencies_of(const Rotary& rotary, int64_t seq, int64_t head_width,
                          const at::TensorOptions& fp32) {
  const at::Tensor exponents = at::arange(0, head_width, 2, fp32) / head_width;
  const at::Tensor own = at::pow(grown_base(rotary, seq, head_width), exponents).reciprocal();
  if (rotary.kind == RotaryKind::kDefault || rotary.kind == RotaryKind::kDynamic) return own;
  const at::Tensor divided = own / rotary.factor;
  if (rotary.kind == RotaryKind::kLinear) return divided;
  const at::Tensor kept = kept_share(own, rotary, head_width);
  return divided * (1 - kept) + own * kept;
}

}  // namespace

Rotation::Rotation(const Rotary& rotary, int64_t seq, int64_t width,
                   const at::TensorOptions& options) {
  ELIXIR_CHECK(seq >= 0 && width > 0 && width % 2 == 0, "{} places, heads of {}", seq, width);
  ELIXIR_CHECK(rotary.base > 0 && rotary.factor > 0, "base {}, factor {}", rotary.base,
               rotary.factor);
  const at::TensorOptions fp32 = options.dtype(at::kFloat);
  const at::Tensor frequencies = frequencies_of(rotary, seq, width, fp32);
  const at::Tensor angles = at::outer(at::arange(seq, fp32), frequencies);
  const at::Tensor pairs = at::cat({angles, angles}, 1);
  cosines = (pairs.cos() * rotary.magnitude).to(options.dtype());
  sines = (pairs.sin() * rotary.magnitude).to(options.dtype());
}

at::Tensor Rotation::turn(const at::Tensor& x) const {
  const int64_t width = cosines.size(1), half = width / 2;
  if (width < x.size(3)) {
    return at::cat({turn(x.narrow(3, 0, width)), x.narrow(3, width, x.size(3) - width)}, 3);
  }
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return (x * cosines + turned * sines).to(x.scalar_type());
}

}  // namespace elixir
