#pragma once

// The verdict on a step, from the squares of all its gradients. Pure arithmetic, the same for
// elixird and for trainers.

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/norm_sum.h"

namespace elixir::optim {

struct VerdictTerms {
  double grad_scale = 1;      // multiplies the sum of gradients
  double clip_norm = 0;       // the greatest L2 norm of scaled gradients; 0: any
  bool check_finite = false;  // skip a step with a gradient that is not finite

  bool needs_norm() const { return clip_norm > 0 || check_finite; }
};

struct Verdict {
  double grad_norm = std::numeric_limits<double>::quiet_NaN();  // before clipping
  double grad_scale = 1;                                        // for the update
  bool skipped = false;
};

// As torch.nn.utils.clip_grad_norm_: gradients are multiplied by min(1, clip_norm / (norm + 1e-6)).
// If a gradient is not finite, there is no norm, and the step is skipped, whether clipping or
// check_finite asked. REQUIRES: terms.needs_norm().
// Note: docs/design/elixir.md, "exact clipping".
inline Verdict judge(const NormSum& squares, const VerdictTerms& terms) {
  ELIXIR_CHECK(terms.needs_norm(), "a norm that nobody asked for");
  Verdict verdict;
  verdict.grad_scale = terms.grad_scale;
  if (squares.nonfinite > 0) {
    verdict.skipped = true;
    verdict.grad_norm = std::numeric_limits<double>::infinity();
    return verdict;
  }
  verdict.grad_norm = std::sqrt(to_double(squares)) * std::abs(terms.grad_scale);
  if (terms.clip_norm > 0) {
    verdict.grad_scale *= std::min(1.0, terms.clip_norm / (verdict.grad_norm + 1e-6));
  }
  return verdict;
}

}  // namespace elixir::optim
