#include "base/finite.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace elixir {
namespace {

template <typename Value>
ValueCounts count(ValueFormat format, const std::vector<Value>& values,
                  ComputeType kept_as = ComputeType::kFp32) {
  return count_values(format, std::as_bytes(std::span(values)), kept_as);
}

TEST(Finite, EachBitPatternOf16BitsIsJudgedAsItsValue) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  // An exponent of ones: 7 bits of BF16 and 10 of FP16 below it, of either sign.
  EXPECT_EQ(count(ValueFormat::kBf16, all).not_finite, 2u << 7);
  EXPECT_EQ(count(ValueFormat::kFp16, all).not_finite, 2u << 10);
  for (const uint16_t bits : all) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    const ValueCounts counts =
        count(ValueFormat::kBf16, std::vector<uint16_t>{bits}, ComputeType::kFp16);
    ASSERT_EQ(counts.not_finite, std::isfinite(value) ? 0u : 1u) << value;
    ASSERT_EQ(counts.too_large, std::isfinite(value) && std::abs(value) >= 65520 ? 1u : 0u)
        << value;
  }
}

TEST(Finite, AValueIsTooLargeWhereItRoundsToInfinity) {
  const float below = std::nextafter(65520.0f, 0.0f);
  const std::vector<float> values = {0, -1, 65504, below, 65520, -65520, 1e30f, -INFINITY, NAN};
  EXPECT_EQ(count(ValueFormat::kFp32, values, ComputeType::kFp16),
            (ValueCounts{.not_finite = 2, .too_large = 3}));
  EXPECT_EQ(count(ValueFormat::kFp32, values, ComputeType::kBf16),
            (ValueCounts{.not_finite = 2, .too_large = 0}));
  // Half a step above BF16's largest value, and the float before it.
  const auto tie = std::bit_cast<float>(0x7f7f8000u), least = std::bit_cast<float>(0x7f7f7fffu);
  EXPECT_EQ(count(ValueFormat::kFp32, std::vector<float>{tie, -tie, least}, ComputeType::kBf16),
            (ValueCounts{.not_finite = 0, .too_large = 2}));
}

TEST(Finite, ADoubleIsTooLargeForAFloat) {
  const std::vector<double> values = {1, 1e39, -1e300, INFINITY, NAN, 65519.99, 65519.999};
  EXPECT_EQ(count(ValueFormat::kFp64, values), (ValueCounts{.not_finite = 2, .too_large = 2}));
  EXPECT_EQ(count(ValueFormat::kFp64, values, ComputeType::kFp16),
            (ValueCounts{.not_finite = 2, .too_large = 3}))
      << "65519.999 is 65520 as a float";
}

// A block's count has 32 bits, and the last block is shorter.
TEST(Finite, EveryValueOfALongArrayCountsWhereverItLies) {
  std::vector<float> values(100'003, 1.0f);
  for (const size_t at : {size_t{0}, size_t{16'383}, size_t{16'384}, values.size() - 1}) {
    values[at] = NAN;
    EXPECT_EQ(count(ValueFormat::kFp32, values).not_finite, 1u) << at;
    values[at] = 1;
  }
  std::vector<std::byte> shifted(values.size() * sizeof(float) + 1);
  const float infinite = -INFINITY;
  std::memcpy(shifted.data() + 1 + 7 * sizeof(float), &infinite, sizeof infinite);
  EXPECT_EQ(count_values(ValueFormat::kFp32, std::span(shifted).subspan(1)).not_finite, 1u);
}

TEST(Finite, ASquareIsNotNegative) {
  const std::vector<float> values = {0, -0.0f, 1e30f, -1e-30f, -INFINITY, INFINITY, -NAN, NAN};
  EXPECT_EQ(count(ValueFormat::kFp32Square, values), (ValueCounts{.not_finite = 5}));
  EXPECT_EQ(value_bytes(ValueFormat::kFp32Square), sizeof(float));
}

TEST(Finite, WhatIsNoNumberHasNone) {
  EXPECT_TRUE(count(ValueFormat::kNone, std::vector<float>{NAN}).good());
  EXPECT_FALSE(count(ValueFormat::kFp32, std::vector<float>{NAN}).good());
}

TEST(Finite, TheLargestValueOfAType) {
  EXPECT_EQ(largest_value(ComputeType::kFp16), 65504);
  EXPECT_EQ(largest_value(ComputeType::kFp32), std::numeric_limits<float>::max());
  EXPECT_NEAR(largest_value(ComputeType::kBf16), 3.3895e38, 1e34);
}

}  // namespace
}  // namespace elixir
