#include "client/probe/operator_rates.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "base/check.h"
#include "client/probe/device_timer.h"
#include "client/torch_device/torch_stream.h"

namespace elixir::probe {
namespace {

constexpr int kSmallOperators = 1000;

at::TensorOptions place(const Device& device) {
  const bool cpu = device.cuda_index() < 0;
  return at::TensorOptions(torch_device(device)).dtype(cpu ? at::kFloat : at::kBFloat16);
}

// A sum, a copy and, in BF16, casts to FP32 and back: what normalizations, activations and losses
// are made of.
double measure_memory(Device& device, const OperatorRateOptions& options) {
  const at::Tensor a = at::ones({options.numel}, place(device)), b = at::ones_like(a);
  at::Tensor out = at::empty_like(a);
  const bool casts = a.scalar_type() != at::kFloat;
  const at::Tensor wide = casts ? at::empty_like(a, at::kFloat) : at::Tensor();
  const double bytes = static_cast<double>(a.nbytes());
  double moved = (3 + 2) * bytes;
  if (casts) moved += 2 * (1 + 2) * bytes;
  const double seconds = DeviceTimer(device).least_seconds(options.rounds, [&] {
    at::add_out(out, a, b);
    out.copy_(b);
    if (!casts) return;
    wide.copy_(a);
    out.copy_(wide);
  });
  return 1e-9 * moved / seconds;
}

double measure_launch(Device& device, const OperatorRateOptions& options) {
  constexpr int64_t kNumel = 64;
  at::Tensor small = at::zeros({kNumel}, place(device));
  const double seconds = DeviceTimer(device).least_seconds(options.rounds, [&] {
    for (int i = 0; i < kSmallOperators; ++i) small.neg_();
  });
  return 1e6 * seconds / kSmallOperators;
}

// As planner::OperatorWork counts it: two products forward and five backward, over the whole square
// of scores.
planner::AttentionRate measure_attention(Device& device, const OperatorRateOptions& options,
                                         uint32_t head) {
  const c10::InferenceMode off(false);  // whoever probes may be in it
  const c10::AutoGradMode gradients(true);
  const int64_t heads = std::max<int64_t>(options.heads_width / head, 1);
  const auto part = [&] {
    return at::randn({options.sequences, heads, options.sequence_tokens, head}, place(device))
        .requires_grad_(true);
  };
  const at::Tensor q = part(), k = part(), v = part();
  const auto forward = [&] { return at::scaled_dot_product_attention(q, k, v, {}, 0, true); };
  DeviceTimer timer(device);
  at::Tensor out;
  const double forward_s = timer.least_seconds(options.rounds, [&] { out = forward(); });
  const at::Tensor gradient = at::ones_like(out);
  const double backward_s =
      timer.least_seconds(options.rounds, [&] { out.backward(gradient, /*retain_graph=*/true); });
  const double product = 2 * static_cast<double>(options.sequences * heads) *
                         static_cast<double>(options.sequence_tokens * options.sequence_tokens) *
                         head;
  return {.head = head,
          .forward_tflops = 1e-12 * 2 * product / forward_s,
          .backward_tflops = 1e-12 * 5 * product / backward_s};
}

}  // namespace

OperatorRates measure_operators(Device& device, const OperatorRateOptions& options) {
  ELIXIR_CHECK(options.numel > 0 && options.rounds > 0, "{} elements, {} rounds", options.numel,
               options.rounds);
  OperatorRates rates;
  rates.memory_gb_s = measure_memory(device, options);
  rates.launch_us = measure_launch(device, options);
  for (const uint32_t head : options.heads) {
    rates.attention.push_back(measure_attention(device, options, head));
  }
  return rates;
}

}  // namespace elixir::probe
