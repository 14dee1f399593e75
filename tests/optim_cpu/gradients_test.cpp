// Sums of gradients and of their squares, against the definition in gradients.h.

#include "optim_cpu/gradients.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/compute_type_names.h"
#include "tests/optim_cpu/adam_checks.h"

namespace elixir::optim {
namespace {

constexpr size_t kGuard = 7;  // elements behind the span that must stay as they are

struct Taken {
  std::vector<float> grad_sum;
  NormSum squares = {};

  bool operator==(const Taken& other) const {
    return std::memcmp(grad_sum.data(), other.grad_sum.data(), grad_sum.size() * sizeof(float)) ==
               0 &&
           std::memcmp(&squares, &other.squares, sizeof squares) == 0;
  }
};

struct Case {
  ComputeType type;
  int n_grads;
  size_t numel;
  bool rounds, begins_sum;
};

std::string name_of(const Case& one) {
  return fmt::format("{} ranks {} numel {} rounds {} first {}", compute_type_name(one.type),
                     one.n_grads, one.numel, one.rounds, one.begins_sum);
}

// Element by element and lane by lane, as gradients.h says it.
Taken by_definition(const Case& one, const void* const* grads, const Taken& before) {
  Taken taken = before;
  for (size_t first = 0; first < one.numel; first += kNormLeafNumel) {
    double lanes[16] = {};
    for (size_t i = first; i < std::min<size_t>(first + kNormLeafNumel, one.numel); ++i) {
      float sum = summed(one.type, grads, one.n_grads, i);
      if (one.rounds) {
        if (!one.begins_sum) sum = taken.grad_sum[i] + sum;
        taken.grad_sum[i] = std::isnan(sum) ? bits_float(kNanBits) : sum;
      }
      if (!std::isfinite(sum)) {
        ++taken.squares.nonfinite;
      } else {
        lanes[i % 16] += static_cast<double>(sum) * static_cast<double>(sum);
      }
    }
    for (int half : {8, 4, 2, 1}) {
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    add_leaf(taken.squares, lanes[0]);
  }
  return taken;
}

Taken run(Isa isa, const Case& one, const void* const* grads, const Taken& before,
          bool squares = true) {
  Taken taken = before;
  const GradientSpan span{.type = one.type,
                          .n_grads = one.n_grads,
                          .grads = grads,
                          .grad_sum = one.rounds ? taken.grad_sum.data() : nullptr,
                          .begins_sum = one.begins_sum,
                          .numel = one.numel};
  take_gradients(isa, span, squares ? &taken.squares : nullptr);
  return taken;
}

class Gradients : public ::testing::Test {
 protected:
  // Calls check(case, grads, before) with floats of every kind.
  template <class Check>
  void for_all(const Check& check) {
    for (ComputeType type : kTypes) {
      for (int n_grads : {1, 2, 3}) {
        for (size_t numel : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 4096, 4097, 9001}) {
          Random random(numel * 10 + static_cast<size_t>(n_grads));
          States states(type, numel + kGuard, n_grads);
          states.fill(random);
          Taken before{std::vector<float>(numel + kGuard), {}};
          for (float& value : before.grad_sum) value = bits_float(random.float_of_any_kind());
          for (uint64_t& limb : before.squares.limb) limb = random.below(1000);
          for (int rounds : {0, 1, 2}) {
            const Case one{type, n_grads, numel, rounds > 0, rounds < 2};
            check(one, states.span().grads, before);
          }
        }
      }
    }
  }
};

TEST_F(Gradients, EveryInstructionSetGivesWhatTheDefinitionSaysWithSquaresOrWithout) {
  uint64_t nonfinite = 0;
  for_all([&](const Case& one, const void* const* grads, const Taken& before) {
    const Taken expected = by_definition(one, grads, before);
    nonfinite += expected.squares.nonfinite;
    for (Isa isa : supported_isas()) {
      EXPECT_TRUE(run(isa, one, grads, before) == expected) << isa_name(isa) << " " << name_of(one);
      const Taken without = run(isa, one, grads, before, /*squares=*/false);
      EXPECT_TRUE(without == (Taken{expected.grad_sum, before.squares}))
          << isa_name(isa) << " " << name_of(one);
    }
  });
  EXPECT_GT(nonfinite, 1000u);
}

// Negative controls: another order of lanes, and a square that is left out, are seen.
TEST_F(Gradients, AnotherOrderHasOtherBits) {
  uint64_t differ = 0;
  Random random(1);
  std::vector<float> grads(kNormLeafNumel);
  for (int times = 0; times < 100; ++times) {
    double in_sequence = 0;
    for (float& value : grads) {
      value = random.uniform(1);
      in_sequence += static_cast<double>(value) * static_cast<double>(value);
    }
    const void* pointer = grads.data();
    const Case one{ComputeType::kFp32, 1, grads.size(), false, true};
    NormSum other = {};
    add_leaf(other, in_sequence);
    const NormSum squares = run(best_isa(), one, &pointer, {}).squares;
    differ += std::memcmp(&squares, &other, sizeof other) != 0;
  }
  EXPECT_GT(differ, 50u);
}

// Cut anywhere at multiples of a leaf, in any order: the same limbs.
TEST_F(Gradients, CutsDoNotMatter) {
  Random random(9);
  const size_t numel = 64 * 50 + 13;
  States states(ComputeType::kBf16, numel, 2);
  states.fill(random);
  const Case one{ComputeType::kBf16, 2, numel, false, true};
  NormSum whole = run(best_isa(), one, states.span().grads, {}).squares;
  carry(whole);
  for (int times = 0; times < 20; ++times) {
    NormSum parts[3] = {};
    for (size_t at = 0; at < numel;) {
      const size_t length = std::min<size_t>(64 * (1 + random.below(9)), numel - at);
      const UpdateSpan cut = states.span(at, length);
      const GradientSpan span{.type = one.type, .n_grads = 2, .grads = cut.grads, .numel = length};
      take_gradients(kIsas[random.below(3)] <= best_isa() ? best_isa() : Isa::kScalar, span,
                     &parts[random.below(3)]);
      at += length;
    }
    NormSum sum = {};
    for (size_t first = random.below(3), i = 0; i < 3; ++i) add(sum, parts[(first + i) % 3]);
    carry(sum);
    EXPECT_EQ(std::memcmp(&sum, &whole, sizeof sum), 0);
  }
}

TEST_F(Gradients, WhateverTheThreadsModes) {
  const std::vector<float> grads(100, bits_float(0x007fffff));  // denormals
  const void* pointer = grads.data();
  const Case one{ComputeType::kFp32, 1, grads.size(), true, true};
  const Taken before{std::vector<float>(100), {}};
  for (Isa isa : supported_isas()) {
    const Taken expected = run(isa, one, &pointer, before);
    Taken flushed;
    with_odd_modes([&] { flushed = run(isa, one, &pointer, before); });
    EXPECT_TRUE(flushed == expected) << isa_name(isa);
    EXPECT_GT(to_double(expected.squares), 0);
  }
}

// UpdateSpan::grad_sum in the place of gradients: what FP32 gradients of that value give.
TEST(RoundSum, UpdatesAsGradientsOfThatValue) {
  for (ComputeType type : kTypes) {
    for (size_t numel : {1, 16, 45, 64, 1000}) {
      Random random(numel);
      States start(type, numel, 2);
      start.fill(random);
      std::vector<float> sum(numel);
      for (float& value : sum) value = bits_float(random.float_of_any_kind());
      const AdamStep step = make_adam_step({}, 3, 0.25);
      const auto span_of = [&](States& states) {
        UpdateSpan span = states.span();
        span.grad_sum = sum.data();
        span.grads = nullptr;  // not looked at
        return span;
      };
      States expected = start;
      update_one_by_one(span_of(expected), step);
      for (Isa isa : supported_isas()) {
        for (bool records : {false, true}) {
          States states = start;
          const UpdateSpan span = span_of(states);
          RedoRecord redo = {};
          adam_update(isa, span, step, records ? &redo : nullptr, 500);
          EXPECT_TRUE(states.same_bits(expected)) << compute_type_name(type) << isa_name(isa);
          if (!records) continue;
          const RedoMark mark = *last_redo(redo);
          EXPECT_EQ(mark.numel, (numel - 1) % kRedoVector + 1);
          const UpdateSpan torn = states.span(mark.index - 500, mark.numel);
          std::memset(torn.moments[0], 0xa5, mark.numel * sizeof(float));
          apply_redo(type, redo, {torn.param, torn.master, {torn.moments[0], torn.moments[1]}});
          EXPECT_TRUE(states.same_bits(expected));
        }
      }
    }
  }
}

}  // namespace
}  // namespace elixir::optim
