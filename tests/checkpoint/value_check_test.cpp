#include "checkpoint/value_check.h"

#include <cmath>
#include <vector>

#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

// A run of a tied embedding, a norm and a frozen parameter.
const std::vector<WantedParameter> kWanted = {
    {"wte.weight", {8}}, {"ln.bias", {8}}, {"base.weight", {8}, /*trained=*/false}};

class Taken final : public StateSink {
 public:
  void take(const LoadRange&, std::span<const std::byte> bytes) override { bytes_ += bytes.size(); }
  uint64_t bytes_ = 0;
};

class ValueCheckTest : public ::testing::Test {
 protected:
  ValueCheckTest() {
    folder_.path = "the folder";
    for (const WantedParameter& wanted : kWanted)
      plan_.stored_names.push_back("own." + wanted.name);
  }

  template <typename Value>
  void take(uint32_t parameter, StateKind kind, const char* dtype,
            const std::vector<Value>& values) {
    const LoadRange range{
        .parameter = parameter, .kind = kind, .dtype = find_dtype(dtype), .numel = values.size()};
    check_.take(range, std::as_bytes(std::span(values)));
  }
  std::string refusal() const { return refusal_of(check_.status(folder_, plan_), Code::kBadInput); }

  Taken taken_;
  // Of one value that is beyond what the type holds.
  static std::string too_large_for(ComputeType type) {
    return refusal_of(check_counts("the folder", "w", {.too_large = 1}, type), Code::kBadInput);
  }
  ValueCheck check_{kWanted, ComputeType::kFp16, taken_};
  StoredFolder folder_;
  LoadPlan plan_;
};

TEST_F(ValueCheckTest, FiniteValuesPassAndAreHandedOn) {
  take(0, StateKind::kParam, "F32", std::vector<float>{1, -2, 65504});
  take(0, StateKind::kExpAvgSq, "F32", std::vector<float>{1e30f});  // a moment stays in FP32
  take(0, StateKind::kMasterLow, "I16", std::vector<uint16_t>{0x7f80, 0xffff});
  EXPECT_TRUE(check_.status(folder_, plan_).ok());
  EXPECT_EQ(taken_.bytes_, 3 * 4u + 4 + 4);
}

TEST_F(ValueCheckTest, TheFirstParameterOfTheModelIsNamedWithAllOfItsValues) {
  take(1, StateKind::kParam, "F32", std::vector<float>{NAN});
  take(0, StateKind::kParam, "BF16", std::vector<uint16_t>{0x7fc0, 0, 0xff80});
  take(0, StateKind::kParam, "BF16", std::vector<uint16_t>{0, 0x7f81});
  EXPECT_THAT(refusal(), HasSubstr("the folder: 'own.wte.weight' has 3 values that are NaN"));
  EXPECT_THAT(refusal(), HasSubstr("1 more tensor has such values"));
  EXPECT_THAT(refusal(), HasSubstr("give an earlier checkpoint"));
}

TEST_F(ValueCheckTest, EachStateIsNamedAsTheFileHasIt) {
  take(1, StateKind::kExpAvgSq, "F32", std::vector<float>{1, INFINITY});
  EXPECT_THAT(
      refusal(),
      HasSubstr("'state.own.ln.bias.exp_avg_sq' has 1 value that is NaN, infinite or negative"));
  take(1, StateKind::kMaster, "F32", std::vector<float>{NAN});
  take(1, StateKind::kExpAvg, "F32", std::vector<float>{NAN, NAN});
  EXPECT_THAT(refusal(),
              HasSubstr("'state.own.ln.bias.exp_avg' has 2 values that are NaN or infinite"));
}

TEST_F(ValueCheckTest, AMomentIsNegativeAndASquareIsNot) {
  take(1, StateKind::kExpAvg, "F32", std::vector<float>{-1});
  take(1, StateKind::kExpAvgSq, "F32", std::vector<float>{-0.0f});
  EXPECT_TRUE(check_.status(folder_, plan_).ok());
  take(1, StateKind::kExpAvgSq, "F32", std::vector<float>{1, -1e-30f, -1});
  EXPECT_THAT(refusal(), HasSubstr("'state.own.ln.bias.exp_avg_sq' has 2 values"));
}

TEST_F(ValueCheckTest, WhatTheTypeCannotHoldIsNamedWithTheTypesThatCan) {
  take(1, StateKind::kParam, "F32", std::vector<float>{70000, -1e20f, 65504});
  EXPECT_THAT(refusal(),
              HasSubstr("'own.ln.bias' has 2 values that are beyond 65504, the largest of fp16"));
  EXPECT_THAT(refusal(), HasSubstr("--dtype bf16 or fp32"));
  EXPECT_THAT(too_large_for(ComputeType::kBf16),
              AllOf(HasSubstr("1 value that is beyond 3.38953e+38"), HasSubstr("--dtype fp32"),
                    Not(HasSubstr("--dtype bf16"))));
  EXPECT_THAT(too_large_for(ComputeType::kFp32),
              AllOf(HasSubstr("another copy of the model"), Not(HasSubstr("--dtype"))));
}

// Bits of the compute type are kept as they are, whatever they mean (shm/load_part.h).
TEST_F(ValueCheckTest, FrozenBitsAreNoValuesUntilTheyAreConverted) {
  take(2, StateKind::kParam, "F16", std::vector<uint16_t>{0x7c01});
  EXPECT_TRUE(check_.status(folder_, plan_).ok());
  take(2, StateKind::kParam, "F32", std::vector<float>{NAN});
  EXPECT_THAT(refusal(), HasSubstr("'own.base.weight' has 1 value "));
}

}  // namespace
}  // namespace elixir::checkpoints
