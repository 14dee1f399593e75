#include "optim_cpu/adam.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "optim_cpu/adam_lanes.h"
#include "optim_cpu/ieee_modes.h"

namespace elixir::optim {
namespace {

Isa wanted_isa() {
  const char* const name = std::getenv("ELIXIR_ISA");
  if (name == nullptr || *name == '\0') return Isa::kAvx512;
  const Result<Isa> wanted = parse_name(kIsaNames, name);
  if (wanted.ok()) return *wanted;
  log_warn("isa", "ignored=ELIXIR_ISA why=\"{}\"", wanted.status().message());
  return Isa::kAvx512;
}

Isa choose_isa() {
  const Isa wanted = wanted_isa();
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (isa <= wanted && isa_supported(isa)) return isa;
  }
  return Isa::kScalar;
}

}  // namespace

AdamStep make_adam_step(const AdamOptions& options, uint64_t step, double grad_scale) {
  ELIXIR_CHECK(step >= 1, "steps count from 1");
  const auto power = static_cast<double>(step);
  const bool decoupled = options.rule == UpdateRule::kAdamW;
  const double bias1 = 1 - std::pow(options.beta1, power);
  const double bias2 = 1 - std::pow(options.beta2, power);
  AdamStep constants;
  constants.grad_scale = static_cast<float>(grad_scale);
  constants.decay = static_cast<float>(decoupled ? 1 - options.lr * options.weight_decay : 1);
  constants.l2 = static_cast<float>(decoupled ? 0 : options.weight_decay);
  constants.beta1 = static_cast<float>(options.beta1);
  constants.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  constants.beta2 = static_cast<float>(options.beta2);
  constants.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  constants.step_size = static_cast<float>(options.lr / bias1);
  constants.inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(bias2));
  constants.eps = static_cast<float>(options.eps);
  constants.step = step;
  return constants;
}

CpuFeatures cpu_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  features.avx2 = __builtin_cpu_supports("avx2");
  features.fma = __builtin_cpu_supports("fma");
#if defined(__clang__)  // whose builtin does not know it; what has AVX2 has it
  features.f16c = features.avx2;
#else
  features.f16c = __builtin_cpu_supports("f16c");
#endif
  features.avx512f = __builtin_cpu_supports("avx512f");
#endif
  return features;
}

bool isa_supported(Isa isa) { return isa_supported(isa, cpu_features()); }

Isa best_isa() {
  static const Isa best = choose_isa();
  return best;
}

void adam_update(Isa isa, const UpdateSpan& span, const AdamStep& step, RedoRecord* redo,
                 uint64_t first_index) {
  ELIXIR_CHECK(isa_supported(isa), "this processor does not have {}", isa_name(isa));
  ELIXIR_CHECK(span.grad_sum != nullptr || (span.n_grads >= 1 && span.n_grads <= kMaxGrads),
               "{} gradients, 1 to {} are possible", span.n_grads, kMaxGrads);
  ELIXIR_CHECK(redo == nullptr || span.results == nullptr, "a redo record of another place");
  const IeeeModes modes;
  switch (isa) {
    case Isa::kScalar:
      return adam_update_scalar(span, step, redo, first_index);
#if defined(__x86_64__)
    case Isa::kAvx2:
      return adam_update_avx2(span, step, redo, first_index);
    case Isa::kAvx512:
      return adam_update_avx512(span, step, redo, first_index);
#else
    default:
      return;
#endif
  }
}

}  // namespace elixir::optim
