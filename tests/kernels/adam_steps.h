#pragma once

#include <vector>

#include "optim_cpu/adam.h"

namespace elixir::optim {

// Steps of AdamW and of Adam, early and late, with constants that leave a term out.
inline std::vector<AdamStep> adam_steps() {
  std::vector<AdamStep> steps;
  for (const UpdateRule rule : {UpdateRule::kAdamW, UpdateRule::kAdam}) {
    const AdamOptions plain{.weight_decay = 0.1, .rule = rule};
    steps.push_back(make_adam_step(plain, 1, 1));
    steps.push_back(make_adam_step(plain, 70'000, 0.37));
    AdamOptions odd = plain;
    odd.lr = 0;
    steps.push_back(make_adam_step(odd, 2, 1.0 / 65536));
    odd = plain;
    odd.beta1 = odd.eps = odd.weight_decay = 0;
    odd.beta2 = 0.5;
    steps.push_back(make_adam_step(odd, 3, 1));
  }
  return steps;
}

}  // namespace elixir::optim
