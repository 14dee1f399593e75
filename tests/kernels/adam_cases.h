#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/compute_type_names.h"
#include "optim_cpu/adam.h"
#include "tests/optim_cpu/states.h"

namespace elixir::optim {

// Steps of AdamW and of Adam, early and late. Some have constants that leave a term out.
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

// The span with `sum`, the FP32 sum over rounds, in place of its gradients (null: with its
// gradients).
inline UpdateSpan span_of(UpdateSpan span, const float* sum) {
  if (sum == nullptr) return span;
  span.grad_sum = sum;
  span.grads = nullptr;  // not read
  return span;
}

// Checks that every element in the span is updated once and none outside. It uses up to 64
// gradients, and their sum over rounds. update(states, at, numel, sum, step) is the function under
// test; `sum` has numel elements or is null.
template <class Update>
void check_any_length(std::span<const size_t> lengths, const Update& update) {
  constexpr size_t kBeyond = 64;
  const AdamStep step = make_adam_step({}, 5, 0.5);
  for (ComputeType type : kTypes) {
    for (size_t numel : lengths) {
      const size_t at = 8 * (numel % 3);  // a multiple of 16 bytes in every type
      Random random(numel);
      std::vector<float> sum(numel + 1);
      for (float& value : sum) value = bits_float(random.float_of_any_kind());
      for (int n_grads : {0, 1, 2, 3, 5, 8, kMaxGrads}) {
        SCOPED_TRACE(::testing::Message() << compute_type_name(type) << " " << numel
                                          << " elements, " << n_grads << " gradients");
        States states(type, numel + 2 * kBeyond, std::max(n_grads, 1));
        states.fill(random);
        States expected = states, of_gradients = states;
        const float* const given = n_grads == 0 ? sum.data() : nullptr;
        adam_update(Isa::kScalar, span_of(expected.span(at, numel), given), step);
        update(states, at, numel, given, step);
        EXPECT_TRUE(states.same_bits(expected));
        if (n_grads > 0) continue;
        update(of_gradients, at, numel, nullptr, step);  // negative control
        EXPECT_EQ(of_gradients.same_bits(expected), numel == 0);
      }
    }
  }
}

// Negative control: gradients summed in another order, and one beta that differs from the
// reference's.
template <class Update>
void check_another_sum_or_constant_is_seen(const Update& update) {
  for (ComputeType type : kTypes) {
    SCOPED_TRACE(compute_type_name(type));
    Random random(8);
    States states(type, 5001, 3);
    states.fill(random);
    States expected = states, reversed = states, other_beta = states;
    std::swap(reversed.grads.front(), reversed.grads.back());
    const AdamStep step = make_adam_step({}, 5, 0.5);
    AdamStep other = step;
    other.beta2 = std::nextafter(step.beta2, 0.0f);
    adam_update(Isa::kScalar, expected.span(), step);
    update(states, 0, states.numel, nullptr, step);
    update(reversed, 0, states.numel, nullptr, step);
    update(other_beta, 0, states.numel, nullptr, other);
    EXPECT_TRUE(states.same_bits(expected));
    EXPECT_FALSE(reversed.same_bits(expected));
    EXPECT_FALSE(other_beta.same_bits(expected));
  }
}

}  // namespace elixir::optim
