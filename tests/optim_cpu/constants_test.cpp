// A step's constants and its verdict, against exact arithmetic: every other test of their bits
// takes both from make_adam_step and judge. The rows are what exact_constants.py prints.

#include <gtest/gtest.h>

#include <cmath>

#include "optim_cpu/adam.h"
#include "optim_cpu/verdict.h"

namespace elixir::optim {
namespace {

struct StepRow {
  AdamOptions options;
  uint64_t step;
  double grad_scale;
  AdamStep expected;  // but for `step`
};

// clang-format off
const StepRow kSteps[] = {
    {{0.001, 0.9, 0.999, 1e-08, 0.01, UpdateRule::kAdamW}, 1, 1, {0x1p+0f, 0x1.fffebp-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.47ae14p-7f, 0x1.f9f6e4p+4f, 0x1.5798eep-27f}},
    {{0.001, 0.9, 0.999, 1e-08, 0.01, UpdateRule::kAdamW}, 2, 1, {0x1p+0f, 0x1.fffebp-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.58ed24p-8f, 0x1.65dc4p+4f, 0x1.5798eep-27f}},
    {{0.001, 0.9, 0.999, 1e-08, 0.01, UpdateRule::kAdamW}, 3, 0.5, {0x1p-1f, 0x1.fffebp-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.e3a918p-9f, 0x1.2443ccp+4f, 0x1.5798eep-27f}},
    {{0.001, 0.9, 0.999, 1e-08, 0.01, UpdateRule::kAdamW}, 10, 0.25, {0x1p-2f, 0x1.fffebp-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.927aecp-10f, 0x1.40b874p+3f, 0x1.5798eep-27f}},
    {{0.0003, 0.9, 0.95, 1e-08, 0.1, UpdateRule::kAdamW}, 1, 0.3333333333333333, {0x1.555556p-2f, 0x1.fffc12p-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.e66666p-1f, 0x1.99999ap-5f, 0x1.89374cp-9f, 0x1.1e377ap+2f, 0x1.5798eep-27f}},
    {{0.0003, 0.9, 0.95, 1e-08, 0.1, UpdateRule::kAdamW}, 7, 0.3333333333333333, {0x1.555556p-2f, 0x1.fffc12p-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.e66666p-1f, 0x1.99999ap-5f, 0x1.2d7c86p-11f, 0x1.d2199ep+0f, 0x1.5798eep-27f}},
    {{0.0003, 0.9, 0.95, 1e-05, 0.1, UpdateRule::kAdamW}, 100, -1, {-0x1p+0f, 0x1.fffc12p-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.e66666p-1f, 0x1.99999ap-5f, 0x1.3a94c6p-12f, 0x1.00c2dep+0f, 0x1.4f8b58p-17f}},
    {{6e-05, 0.9, 0.98, 1e-06, 0.01, UpdateRule::kAdamW}, 1000, 0.015625, {0x1p-6f, 0x1.ffffecp-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.f5c29p-1f, 0x1.47ae14p-6f, 0x1.f75104p-15f, 0x1p+0f, 0x1.0c6f7ap-20f}},
    {{0.01, 0.9, 0.9999, 1e-08, 0, UpdateRule::kAdamW}, 1, 1, {0x1p+0f, 0x1p+0f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.fff2e4p-1f, 0x1.a36e2ep-14f, 0x1.99999ap-4f, 0x1.9p+6f, 0x1.5798eep-27f}},
    {{0.01, 0.9, 0.9999, 1e-08, 0, UpdateRule::kAdamW}, 12345, 1, {0x1p+0f, 0x1p+0f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.fff2e4p-1f, 0x1.a36e2ep-14f, 0x1.47ae14p-7f, 0x1.3005aep+0f, 0x1.5798eep-27f}},
    {{1, 0, 0.999, 1e-08, 0.5, UpdateRule::kAdamW}, 5, 1, {0x1p+0f, 0x1p-1f, 0, 0, 0x1p+0f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1p+0f, 0x1.c5004ap+3f, 0x1.5798eep-27f}},
    {{0.001, 0.9, 0, 0, 0.01, UpdateRule::kAdamW}, 5, 1, {0x1p+0f, 0x1.fffebp-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0, 0x1p+0f, 0x1.401202p-9f, 0x1p+0f, 0}},
    {{0, 0.9, 0.999, 1e-08, 0.01, UpdateRule::kAdamW}, 4, 1, {0x1p+0f, 0x1p+0f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0, 0x1.fa5816p+3f, 0x1.5798eep-27f}},
    {{0.001, 0.9, 0.999, 1e-08, 0.01, UpdateRule::kAdamW}, 100000, 1, {0x1p+0f, 0x1.fffebp-1f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.0624dep-10f, 0x1p+0f, 0x1.5798eep-27f}},
    {{7e-07, 0.8, 0.99, 1e-07, 100, UpdateRule::kAdamW}, 33, 0.001, {0x1.0624dep-10f, 0x1.fff6d4p-1f, 0, 0x1.99999ap-1f, 0x1.99999ap-3f, 0x1.fae148p-1f, 0x1.47ae14p-7f, 0x1.780c48p-21f, 0x1.e1d882p+0f, 0x1.ad7f2ap-24f}},
    {{0.001, 0.9, 0.999, 1e-08, 0, UpdateRule::kAdam}, 1, 1, {0x1p+0f, 0x1p+0f, 0, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.47ae14p-7f, 0x1.f9f6e4p+4f, 0x1.5798eep-27f}},
    {{0.001, 0.9, 0.999, 1e-08, 0.01, UpdateRule::kAdam}, 2, 1.52587890625e-05, {0x1p-16f, 0x1p+0f, 0x1.47ae14p-7f, 0x1.ccccccp-1f, 0x1.99999ap-4f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.58ed24p-8f, 0x1.65dc4p+4f, 0x1.5798eep-27f}},
    {{2e-05, 0.99, 0.999, 1e-12, 0.3, UpdateRule::kAdam}, 17, 1, {0x1p+0f, 0x1p+0f, 0x1.333334p-2f, 0x1.fae148p-1f, 0x1.47ae14p-7f, 0x1.ff7ceep-1f, 0x1.0624dep-10f, 0x1.0b0e76p-13f, 0x1.ecd2aep+2f, 0x1.197998p-40f}},
    {{0.0001, 0.95, 0.99999, 1e-30, 0.0001, UpdateRule::kAdam}, 50000, 0.14285714285714285, {0x1.24924ap-3f, 0x1p+0f, 0x1.a36e2ep-14f, 0x1.e66666p-1f, 0x1.99999ap-5f, 0x1.fffebp-1f, 0x1.4f8b58p-17f, 0x1.a36e2ep-14f, 0x1.981db6p+0f, 0x1.4484cp-100f}},
    {{0.25, 0.5, 0.75, 0.125, 0.0625, UpdateRule::kAdam}, 2, -2, {-0x1p+1f, 0x1p+0f, 0x1p-4f, 0x1p-1f, 0x1p-1f, 0x1.8p-1f, 0x1p-2f, 0x1.555556p-2f, 0x1.83091ep+0f, 0x1p-3f}},
};
// clang-format on

TEST(Constants, AreTheNearestFloatsOfTheExactValues) {
  for (const StepRow& row : kSteps) {
    const AdamStep made = make_adam_step(row.options, row.step, row.grad_scale);
    SCOPED_TRACE(::testing::Message() << "lr " << row.options.lr << " step " << row.step);
    EXPECT_EQ(made.grad_scale, row.expected.grad_scale);
    EXPECT_EQ(made.decay, row.expected.decay);
    EXPECT_EQ(made.l2, row.expected.l2);
    EXPECT_EQ(made.beta1, row.expected.beta1);
    EXPECT_EQ(made.one_minus_beta1, row.expected.one_minus_beta1);
    EXPECT_EQ(made.beta2, row.expected.beta2);
    EXPECT_EQ(made.one_minus_beta2, row.expected.one_minus_beta2);
    EXPECT_EQ(made.step_size, row.expected.step_size);
    EXPECT_EQ(made.inv_sqrt_bias2, row.expected.inv_sqrt_bias2);
    EXPECT_EQ(made.eps, row.expected.eps);
    EXPECT_EQ(made.step, row.step);
  }
}

struct VerdictRow {
  std::vector<double> squares;
  double grad_scale, clip_norm;
  double grad_norm, grad_scale_of_update;
};

// clang-format off
const VerdictRow kVerdicts[] = {
    {{9, 16}, 1, 0, 0x1.4p+2, 0x1p+0},
    {{9, 16}, 1, 1, 0x1.4p+2, 0x1.9999943b35f31p-3},
    {{9, 16}, -0.5, 1, 0x1.4p+1, -0x1.99998edcd2709p-3},
    {{9, 16}, 0.5, 10, 0x1.4p+1, 0x1p-1},
    {{9, 16}, 0.3333333333333333, 1, 0x1.aaaaaaaaaaaaap+0, 0x1.9999897e6f121p-3},
    {{2}, 1, 1, 0x1.6a09e667f3bcdp+0, 0x1.6a09d5a0fce32p-1},
    {{2}, -1, 1.25, 0x1.6a09e667f3bcdp+0, -0x1.c48c4b093c1bep-1},
    {{1e-12}, 1, 1e-06, 0x1.0c6f7a0b5ed8dp-20, 0x1p-1},
    {{0}, 1, 1, 0, 0x1p+0},
    {{0.1, 0.2, 0.3}, 64, 2.5, 0x1.8c97ef43f7248p+5, 0x1.9d1e435afcb6ap+1},
    {{1e+30, 1e-30}, -1e-15, 1, 0x1p+0, -0x1.203ae70ac2943p-50},
};
// clang-format on

TEST(Verdict, IsThatOfExactArithmetic) {
  for (const VerdictRow& row : kVerdicts) {
    NormSum squares = {};
    for (const double square : row.squares) add_leaf(squares, square);
    const Verdict verdict = judge(
        squares, {.grad_scale = row.grad_scale, .clip_norm = row.clip_norm, .check_finite = true});
    SCOPED_TRACE(::testing::Message() << "scale " << row.grad_scale << " clip " << row.clip_norm);
    EXPECT_DOUBLE_EQ(verdict.grad_norm, row.grad_norm);  // within 4 units in the last place
    EXPECT_DOUBLE_EQ(verdict.grad_scale, row.grad_scale_of_update);
    EXPECT_FALSE(verdict.skipped);
  }
}

TEST(Verdict, OfGradientsThatAreNotFiniteIsASkip) {
  NormSum squares = {};
  squares.nonfinite = 1;
  for (const double clip_norm : {0.0, 1.0}) {
    const Verdict verdict =
        judge(squares, {.grad_scale = 0.5, .clip_norm = clip_norm, .check_finite = true});
    EXPECT_TRUE(verdict.skipped);
    EXPECT_TRUE(std::isinf(verdict.grad_norm));
    EXPECT_EQ(verdict.grad_scale, 0.5);
  }
}

}  // namespace
}  // namespace elixir::optim
