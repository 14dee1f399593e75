#include "optim_cpu/gradients.h"

#include <algorithm>

#include "base/check.h"
#include "optim_cpu/gradient_lanes.h"
#include "optim_cpu/ieee_modes.h"

namespace elixir::optim {
namespace {

size_t take_leaves(Isa isa, const GradientSpan& span, size_t at, size_t numel, double* leaves) {
  switch (isa) {
    case Isa::kScalar:
      return take_leaves_scalar(span, at, numel, leaves);
#if defined(__x86_64__)
    case Isa::kAvx2:
      return take_leaves_avx2(span, at, numel, leaves);
    case Isa::kAvx512:
      return take_leaves_avx512(span, at, numel, leaves);
#else
    default:
      break;
#endif
  }
  return 0;
}

}  // namespace

void take_gradients(Isa isa, const GradientSpan& span, NormSum* squares) {
  ELIXIR_CHECK(isa_supported(isa), "this processor does not have {}", isa_name(isa));
  ELIXIR_CHECK(span.n_grads >= 1 && span.n_grads <= kMaxGrads, "{} gradients, 1 to {} are possible",
               span.n_grads, kMaxGrads);
  const IeeeModes modes;
  constexpr size_t kBlockNumel = kLeavesAtOnce * kNormLeafNumel;
  double leaves[kLeavesAtOnce];
  for (size_t at = 0; at < span.numel; at += kBlockNumel) {
    const size_t numel = std::min(kBlockNumel, span.numel - at);
    const size_t nonfinite = take_leaves(isa, span, at, numel, squares ? leaves : nullptr);
    if (squares == nullptr) continue;
    squares->nonfinite += nonfinite;
    const size_t n_leaves = (numel + kNormLeafNumel - 1) / kNormLeafNumel;
    for (size_t leaf = 0; leaf < n_leaves; ++leaf) add_leaf(*squares, leaves[leaf]);
  }
}

}  // namespace elixir::optim
