#include "client/tensors/linear_cross_entropy.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/throw_error.h"
#include "client/tensors/profile_target.h"

namespace elixir {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kFewestRows = 1024;  // narrower products leave a GPU idle
constexpr int64_t kMostSlices = 512;   // each is some twenty operators

bool all_fit(int64_t tokens, int64_t vocabulary) {
  return tokens <= kLogitsBytes / (int64_t{sizeof(float)} * vocabulary);
}

// Of their logits, and of the rows themselves, which a CPU needs in FP32.
int64_t rows_at_a_time(int64_t tokens, int64_t width, int64_t vocabulary) {
  const int64_t fit =
      kLogitsBytes / (int64_t{sizeof(float)} * std::max({tokens, width, int64_t{1}}));
  return std::min(std::max({fit, kFewestRows, vocabulary / kMostSlices}), vocabulary);
}

at::ScalarType sum_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Cut {
  int64_t slice;
  double softcap;  // 0: none
};

// Some rows of the weight, and which targets are among them.
struct Rows {
  Rows(const at::Tensor& all, const at::Tensor& targets, int64_t begin, int64_t most)
      : weight(all.narrow(0, begin, std::min(most, all.size(0) - begin))) {
    const at::Tensor from_here = (targets - begin).unsqueeze(1);
    index = from_here.clamp(0, weight.size(0) - 1);
    inside = index.eq(from_here);
  }

  // Rounded to the weight's type, as the whole would be.
  at::Tensor logits(const at::Tensor& hidden) const { return hidden.mm(weight.t()); }

  const at::Tensor weight;
  at::Tensor index, inside;  // [tokens, 1]
};

// Of each token, [tokens, 1]: a row's exponentials are taken less its maximum.
struct Normaliser {
  at::Tensor maximum, sum;  // of the exponentials
  at::Tensor picked;        // the target's logit
};

Normaliser normalise(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     const Cut& cut) {
  // In place of -inf, whose differences are NaN.
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  const at::TensorOptions options = hidden.options().dtype(sum_type(hidden));
  Normaliser all{.maximum = at::full({hidden.size(0), 1}, kLowest, options),
                 .sum = at::zeros({hidden.size(0), 1}, options),
                 .picked = at::zeros({hidden.size(0), 1}, options)};
  for (int64_t begin = 0; begin < weight.size(0); begin += cut.slice) {
    const Rows rows(weight, targets, begin, cut.slice);
    at::Tensor logits = rows.logits(hidden);
    if (cut.softcap > 0) logits.div_(cut.softcap).tanh_().mul_(cut.softcap);
    logits = logits.to(options.dtype());
    all.picked = at::where(rows.inside, logits.gather(1, rows.index), all.picked);
    const at::Tensor maximum = at::maximum(all.maximum, logits.amax(1, /*keepdim=*/true));
    const at::Tensor sum = logits.sub_(maximum).exp_().sum(1, /*keepdim=*/true);
    all.sum = at::addcmul(sum, all.sum, (all.maximum - maximum).exp_());
    all.maximum = maximum;
  }
  return all;
}

// The loss's gradient with respect to hidden . weight^T, [tokens, rows], in the type of sums.
// `each` [tokens, 1]: what a token's loss counts.
at::Tensor logits_gradient(const Rows& rows, const at::Tensor& hidden, const Normaliser& all,
                           const at::Tensor& each, double softcap) {
  at::Tensor logits = rows.logits(hidden), tanh;
  if (softcap > 0) {
    tanh = logits.div_(softcap).tanh_();
    logits = tanh * softcap;
  }
  at::Tensor result = logits.to(each.scalar_type());
  result.sub_(all.maximum).exp_().mul_(each / all.sum);
  result.scatter_(1, rows.index, result.gather(1, rows.index) - each * rows.inside);
  if (softcap > 0) result = at::tanh_backward(result, tanh.to(result.scalar_type()));
  return result;
}

// sum += gradient . rows. A slice's product must not be rounded to 16 bits: the target's slice is
// nearly as large as the sum of the others, which it cancels.
void add_product(at::Tensor* sum, const at::Tensor& gradient, const at::Tensor& rows) {
  if (takes_cudas_way(rows) && rows.scalar_type() != sum->scalar_type()) {
    sum->add_(at::mm(gradient.to(rows.scalar_type()), rows, sum->scalar_type()));
  } else {
    at::addmm_out(*sum, *sum, gradient, rows.to(sum->scalar_type()));
  }
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            const Normaliser& all, const Cut& cut) {
    const at::Tensor counts = targets.ne(kIgnoredTarget).unsqueeze(1);
    const at::Tensor number = counts.sum().to(all.sum.scalar_type());
    context->save_for_backward({hidden, weight, targets, all.maximum, all.sum, number});
    context->saved_data["slice"] = cut.slice;
    context->saved_data["softcap"] = cut.softcap;
    // The difference first: it is small where the target is likely.
    const at::Tensor losses = all.sum.log() + (all.maximum - all.picked);
    return at::where(counts, losses, 0).sum() / number;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_no_graph();
    const c10::impl::ExcludeDispatchKeyGuard as_saved(c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &targets = saved[2];
    const Normaliser all{.maximum = saved[3], .sum = saved[4], .picked = {}};
    const int64_t slice = context->saved_data["slice"].toInt();
    const double softcap = context->saved_data["softcap"].toDouble();
    const at::Tensor each =
        at::where(targets.ne(kIgnoredTarget), grads[0] / saved[5], 0).unsqueeze(1);
    at::Tensor to_hidden, to_weight;
    if (context->needs_input_grad(0)) to_hidden = at::zeros(hidden.sizes(), each.options());
    if (context->needs_input_grad(1)) to_weight = at::empty(weight.sizes(), weight.options());
    for (int64_t begin = 0; begin < weight.size(0); begin += slice) {
      const Rows rows(weight, targets, begin, slice);
      const at::Tensor to_logits = logits_gradient(rows, hidden, all, each, softcap);
      if (to_weight.defined()) {
        at::Tensor of_rows = to_weight.narrow(0, begin, rows.weight.size(0));
        at::mm_out(of_rows, to_logits.to(hidden.scalar_type()).t(), hidden);
      }
      if (to_hidden.defined()) add_product(&to_hidden, to_logits, rows.weight);
    }
    if (to_hidden.defined()) to_hidden = to_hidden.to(hidden.scalar_type());
    return {to_hidden, to_weight, {}, {}, {}};
  }

 private:
  static void check_no_graph() {
    if (!at::GradMode::is_enabled()) return;
    throw Error(
        error(Code::kInvalidArgument,
              "backward() with create_graph through elixir::linear_cross_entropy(): its gradients "
              "have no graph, so a loss that is computed from them would have no derivative; call "
              "backward() without create_graph, or use torch's linear and cross_entropy"));
  }
};

// ---- what is asked for ----

void require(bool holds, const std::string& what) {
  if (holds) return;
  throw Error(error(Code::kInvalidArgument, "elixir::linear_cross_entropy(): {}", what));
}

std::string described(const at::Tensor& tensor) {
  return fmt::format("[{}] of {} on {}", fmt::join(tensor.sizes(), ", "),
                     c10::toString(tensor.scalar_type()), tensor.device().str());
}

void check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
           const Cut& cut) {
  require(weight.dim() == 2 && weight.size(0) > 0 && hidden.dim() >= 1 &&
              hidden.size(-1) == weight.size(1) && hidden.scalar_type() == weight.scalar_type() &&
              at::isFloatingType(hidden.scalar_type()) && hidden.device() == weight.device(),
          fmt::format("hidden is {} and weight {}: [..., width] and [vocabulary, width] of one "
                      "floating type are expected",
                      described(hidden), described(weight)));
  require(targets.scalar_type() == at::kLong && targets.device() == hidden.device() &&
              targets.sizes() == hidden.sizes().slice(0, static_cast<size_t>(hidden.dim() - 1)),
          fmt::format("targets are {} for hidden {}: an int64 token for each of hidden's rows is "
                      "expected",
                      described(targets), described(hidden)));
  require(std::isfinite(cut.softcap) && cut.softcap >= 0,
          fmt::format("softcap is {}: it must be positive, or 0 for none", cut.softcap));
  require(cut.slice >= 0,
          fmt::format("slice is {}: it is the rows of the weight at a time, or 0", cut.slice));
}

void check_targets(const at::Tensor& targets, int64_t vocabulary) {
  if (targets.is_meta() || targets.numel() == 0) return;
  const at::Tensor counts = targets.ne(kIgnoredTarget);
  const at::Tensor fits =
      targets.ge(0).logical_and_(targets.lt(vocabulary)).logical_or_(counts.logical_not()).all();
  if (!targets.is_cpu()) {  // nothing waits for the device
    at::_assert_async(fits, "elixir::linear_cross_entropy(): a target outside of the vocabulary");
    return;
  }
  if (fits.item<bool>()) return;
  const at::Tensor counted = targets.masked_select(counts);
  require(false,
          fmt::format("targets are from {} to {}, and the vocabulary has {} tokens",
                      counted.min().item<int64_t>(), counted.max().item<int64_t>(), vocabulary));
}

// In the type that torch's linear would compute in.
at::Tensor as_linear_takes(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) {
    return tensor;
  }
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

at::Tensor whole(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                 double softcap) {
  at::Tensor logits = at::linear(hidden, weight);
  if (softcap > 0) logits = at::tanh(logits / softcap) * softcap;
  return at::cross_entropy_loss(logits.view({targets.numel(), weight.size(0)}).to(sum_type(hidden)),
                                targets.reshape({-1}));
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t slice, double softcap) {
  require(hidden.defined() && weight.defined() && targets.defined(), "a tensor is undefined");
  const at::Tensor all = as_linear_takes(hidden), table = as_linear_takes(weight);
  check(all, table, targets, {slice, softcap});
  check_targets(targets, table.size(0));
  const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
  const int64_t vocabulary = table.size(0);
  if (slice == 0 && all_fit(targets.numel(), vocabulary)) {
    return whole(all, table, targets, softcap);
  }
  const int64_t fit = rows_at_a_time(targets.numel(), table.size(1), vocabulary);
  const Cut cut{slice > 0 ? std::min(slice, vocabulary) : fit, softcap};
  const at::Tensor tokens = all.reshape({targets.numel(), all.size(-1)});
  const at::Tensor numbers = targets.reshape({-1});
  // Not in the function's forward, which runs without gradients: elixir would take it for an
  // evaluation.
  const Normaliser normaliser = normalise(tokens.detach(), table.detach(), numbers, cut);
  return LinearCrossEntropy::apply(tokens, table, numbers, normaliser, cut);
}

}  // namespace elixir
