// Spans of every length at every alignment, the redo record they leave, and the formula against
// plain AdamW and Adam in double precision.

#include <gtest/gtest.h>

#include <cmath>

#include "base/compute_type_names.h"
#include "tests/optim_cpu/adam_checks.h"

namespace elixir::optim {
namespace {

// Where an update out of place puts its results: arrays as shared memory has them, and more of them
// than it writes.
struct Results {
  alignas(64) std::byte param[400], master[400];
  alignas(64) float moments[2][100];

  Results() { std::memset(this, 0xa5, sizeof *this); }
  StatePlace place(ComputeType type, size_t at) {
    return {.param = param + at * element_bytes(type),
            .master = master + at * master_bytes(type),
            .moments = {moments[0] + at, moments[1] + at}};
  }
};

// The old states stay as they are, and nothing but the span's results is written: to where stores
// may go past the caches, and to an odd place.
void check_out_of_place(ComputeType type, Isa isa, const States& before, const States& expected,
                        size_t at, size_t length, const AdamStep& step) {
  for (const size_t to : {size_t{0}, at}) {
    States old = before;
    Results results, wanted;
    const StatePlace place = results.place(type, to);
    UpdateSpan span = old.span(at, length);
    span.results = &place;
    adam_update(isa, span, step);
    EXPECT_TRUE(old.same_bits(before));
    const StatePlace out = wanted.place(type, to);
    const size_t element = element_bytes(type), low = master_bytes(type);
    std::memcpy(out.param, expected.param.data() + at * element, length * element);
    if (low != 0) std::memcpy(out.master, expected.master.data() + at * low, length * low);
    std::memcpy(out.moments[0], expected.exp_avg.data() + at, length * sizeof(float));
    std::memcpy(out.moments[1], expected.exp_avg_sq.data() + at, length * sizeof(float));
    EXPECT_EQ(std::memcmp(&results, &wanted, sizeof results), 0) << "to " << to;
  }
}

// One span of `length` from `at` in arrays that are longer on both sides, so that a store outside
// it is seen.
void check_span(ComputeType type, Isa isa, size_t at, size_t length) {
  SCOPED_TRACE(testing::Message() << compute_type_name(type) << " " << isa_name(isa) << " at " << at
                                  << " length " << length);
  Random random(at * 100 + length);
  States states(type, 100, 1 + static_cast<int>(random.below(3)));
  states.fill(random);
  const AdamStep step = make_adam_step({}, 5, 0.5);
  const States before = states;
  States expected = states, recorded = states;
  update_one_by_one(expected.span(at, length), step);
  adam_update(isa, states.span(at, length), step);
  EXPECT_TRUE(states.same_bits(expected));

  check_out_of_place(states.type, isa, before, expected, at, length, step);

  RedoRecord redo = {};
  adam_update(isa, recorded.span(at, length), step, &redo, 1000 + at);
  EXPECT_TRUE(recorded.same_bits(expected));
  const RedoMark mark = *last_redo(redo);
  const size_t last_numel = length == 0 ? 0 : (length - 1) % kRedoVector + 1;
  EXPECT_EQ(mark.numel, last_numel);
  if (length == 0) return;
  EXPECT_EQ(mark.step, 5U);
  EXPECT_EQ(mark.index, 1000 + at + length - last_numel);
  EXPECT_EQ(std::max(redo.half[0].sequence, redo.half[1].sequence),
            (length + kRedoVector - 1) / kRedoVector);

  // The last vector is lost: the record brings it back, however often.
  const size_t first = mark.index - 1000;
  const UpdateSpan torn = recorded.span(first, last_numel);
  std::memset(torn.param, 0xa5, last_numel * element_bytes(type));
  if (master_bytes(type) != 0) std::memset(torn.master, 0xa5, last_numel * master_bytes(type));
  std::memset(torn.moments[0], 0xa5, last_numel * sizeof(float));
  std::memset(torn.moments[1] + last_numel / 2, 0xa5, sizeof(float));
  EXPECT_FALSE(recorded.same_bits(expected));
  for (int times = 0; times < 2; ++times) {
    apply_redo(type, redo, {torn.param, torn.master, {torn.moments[0], torn.moments[1]}});
    EXPECT_TRUE(recorded.same_bits(expected));
  }
}

TEST(Span, EveryLengthAtEveryAlignment) {
  for (ComputeType type : kTypes) {
    for (Isa isa : supported_isas()) {
      for (size_t length = 0; length <= 67; ++length) {
        for (size_t at : {0, 1, 2, 3, 5, 8, 13, 17, 31}) check_span(type, isa, at, length);
      }
    }
  }
}

TEST(Span, SixtyFourGradientsAreSummedInRankOrder) {
  for (ComputeType type : kTypes) {
    Random random(4);
    States states(type, 45, kMaxGrads);
    states.fill(random);
    const AdamStep step = make_adam_step({}, 2, 1.0 / kMaxGrads);
    States expected = states;
    update_one_by_one(expected.span(), step);
    for (Isa isa : supported_isas()) {
      States mine = states;
      adam_update(isa, mine.span(), step);
      EXPECT_TRUE(mine.same_bits(expected)) << compute_type_name(type) << " " << isa_name(isa);
    }
  }
}

TEST(Redo, HalvesAlternateAcrossSpansAndUpdaters) {
  Random random(2);
  States states(ComputeType::kBf16, 16);
  states.fill(random);
  RedoRecord redo = {};
  EXPECT_EQ(last_redo(redo)->numel, 0U);
  // The order of indices does not matter: the last call is what was recorded last.
  const uint64_t indices[] = {5000, 16, 700, 0};
  for (uint64_t i = 0; i < 4; ++i) {
    const RedoRecord::Half before =
        redo.half[0].sequence > redo.half[1].sequence ? redo.half[0] : redo.half[1];
    adam_update(best_isa(), states.span(), make_adam_step({}, 9, 1), &redo, indices[i]);
    EXPECT_EQ(last_redo(redo)->index, indices[i]);
    EXPECT_EQ(redo.half[i % 2 == 0 ? 1 : 0].sequence, i + 1);
    EXPECT_EQ(std::memcmp(&redo.half[i % 2], &before, sizeof before), 0)
        << "the half recorded last is left alone";
  }
}

TEST(Redo, WhatNoUpdaterWroteIsRefused) {
  RedoRecord redo = {};
  redo.half[1].sequence = 3;
  EXPECT_EQ(last_redo(redo).status().code(), Code::kProtocol);
  redo.half[1].numel = 17;
  EXPECT_EQ(last_redo(redo).status().code(), Code::kProtocol);
  redo.half[1].numel = 16;
  EXPECT_TRUE(last_redo(redo).ok());
}

// Adam as its papers have it, in double and without any of our arrangement.
struct DoubleAdam {
  AdamOptions options;
  std::vector<double> param, exp_avg, exp_avg_sq;

  void step(int t, const std::vector<double>& grads) {
    for (size_t i = 0; i < param.size(); ++i) {
      double grad = grads[i];
      if ((options.rule == UpdateRule::kAdamW)) {
        param[i] -= options.lr * options.weight_decay * param[i];
      } else {
        grad += options.weight_decay * param[i];
      }
      exp_avg[i] = options.beta1 * exp_avg[i] + (1 - options.beta1) * grad;
      exp_avg_sq[i] = options.beta2 * exp_avg_sq[i] + (1 - options.beta2) * grad * grad;
      const double mean = exp_avg[i] / (1 - std::pow(options.beta1, t));
      const double mean_sq = exp_avg_sq[i] / (1 - std::pow(options.beta2, t));
      param[i] -= options.lr * mean / (std::sqrt(mean_sq) + options.eps);
    }
  }
};

// 50 steps; returns the largest error of a master relative to the largest master.
double error_against(ComputeType type, const AdamOptions& ours, const AdamOptions& theirs) {
  constexpr size_t kNumel = 1000;
  Random random(11);
  States states(type, kNumel);
  std::vector<float> masters(kNumel), grads(kNumel);
  for (float& value : masters) value = random.uniform(0.1f);
  load_master(type, masters.data(), kNumel, states.param.data(), states.master.data());
  DoubleAdam plain{theirs, {masters.begin(), masters.end()}, {}, {}};
  plain.exp_avg.resize(kNumel);
  plain.exp_avg_sq.resize(kNumel);
  std::vector<double> scaled(kNumel);
  for (int t = 1; t <= 50; ++t) {
    for (size_t i = 0; i < kNumel; ++i) {
      // Values that all three types hold exactly.
      const float grad = bf16_to_float(split_bf16(random.uniform(1.0f)).param & 0xfff0);
      const float exact = half_to_float(float_to_half(grad));
      std::vector<float> unused(1);
      load_master(type, &exact, 1, states.grads[0].data() + i * element_bytes(type), &unused[0]);
      scaled[i] = 0.25 * exact;
    }
    adam_update(best_isa(), states.span(), make_adam_step(ours, t, 0.25));
    plain.step(t, scaled);
  }
  read_master(type, states.param.data(), states.master.data(), kNumel, masters.data());
  double error = 0, largest = 0;
  for (size_t i = 0; i < kNumel; ++i) {
    error = std::max(error, std::abs(masters[i] - plain.param[i]));
    largest = std::max(largest, std::abs(plain.param[i]));
  }
  return error / largest;
}

TEST(Formula, FiftyStepsAgreeWithPlainAdamInDouble) {
  const AdamOptions decoupled{.weight_decay = 0.1};
  const AdamOptions coupled{.weight_decay = 0.1, .rule = UpdateRule::kAdam};
  for (ComputeType type : kTypes) {
    EXPECT_LT(error_against(type, decoupled, decoupled), 1e-5) << compute_type_name(type);
    EXPECT_LT(error_against(type, coupled, coupled), 1e-5) << compute_type_name(type);
    // Negative controls: the tolerance tells the two decays, and a beta, apart.
    EXPECT_GT(error_against(type, coupled, decoupled), 1e-4);
    EXPECT_GT(error_against(type, {.beta2 = 0.998}, {}), 1e-4);
  }
}

}  // namespace
}  // namespace elixir::optim
