#pragma once

#include <cstdint>

#include "shm/layout.h"

namespace elixir::test {

// A record for a step of AdamW with one group.
inline shm::StepRecord verdict_on(uint32_t step) {
  shm::StepRecord verdict{};
  verdict.step = step;
  verdict.rule = static_cast<uint32_t>(UpdateRule::kAdamW);
  verdict.n_groups = 1;
  verdict.groups[0] = {.lr = 0.01, .weight_decay = 0.1, .hyper = {0.9, 0.999, 1e-8}};
  verdict.grad_scale = 0.5;
  verdict.metric = 1;
  return verdict;
}

}  // namespace elixir::test
