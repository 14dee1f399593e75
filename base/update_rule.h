#pragma once

// The rules by which a gradient changes a parameter. A rule is a row of this table and a formula:
// optim_cpu has Adam's and AdamW's (adam_math.h). The values are part of the shared-memory layout.

#include <cstdint>
#include <iterator>

#include "base/check.h"

namespace elixir {

// Adam adds weight decay to the gradient. AdamW shrinks the parameter with it (Loshchilov and
// Hutter, arXiv 1711.05101).
enum class UpdateRule : uint32_t { kAdam = 0, kAdamW = 1 };

inline constexpr uint32_t kMaxMoments = 2;  // FP32 arrays beside the master, also in redo records
inline constexpr uint32_t kMaxHyper = 6;    // per step, beside learning rate and weight decay

struct UpdateRuleTraits {
  const char* name;
  uint32_t n_moments;
  uint32_t n_hyper;
  const char* hyper[kMaxHyper];  // names as in torch
};
inline constexpr UpdateRuleTraits kUpdateRules[] = {
    {"adam", 2, 3, {"beta1", "beta2", "eps"}},
    {"adamw", 2, 3, {"beta1", "beta2", "eps"}},
};
enum AdamHyper : uint32_t { kBeta1 = 0, kBeta2 = 1, kEps = 2 };

constexpr bool known_rule(UpdateRule rule) {
  return static_cast<uint32_t>(rule) < std::size(kUpdateRules);
}
// REQUIRES: known_rule(rule).
constexpr const UpdateRuleTraits& traits_of(UpdateRule rule) {
  ELIXIR_CHECK(known_rule(rule), "update rule {}", static_cast<uint32_t>(rule));
  return kUpdateRules[static_cast<uint32_t>(rule)];
}

}  // namespace elixir
