// A sum of doubles without rounding: against integers of 700 bits, in any order, from hostile
// limbs.

#include "base/norm_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace elixir {
namespace {

// Non-negative integers of 768 bits, by hand.
struct Wide {
  uint32_t word[24] = {};

  void add(const Wide& other) {
    uint64_t carried = 0;
    for (int i = 0; i < 24; ++i) {
      carried += uint64_t{word[i]} + other.word[i];
      word[i] = static_cast<uint32_t>(carried);
      carried >>= 32;
    }
  }
  bool operator==(const Wide&) const = default;
};

// The double in units of 2^kNormUnitExponent; bit by bit.
Wide wide_of(double value) {
  int exponent = 0;
  double fraction = std::frexp(value, &exponent);  // in [0.5, 1)
  Wide wide;
  for (int bit = exponent - 1; fraction != 0; --bit) {
    fraction *= 2;
    if (fraction < 1) continue;
    fraction -= 1;
    const int place = bit - kNormUnitExponent;
    wide.word[place / 32] |= 1u << (place % 32);
  }
  return wide;
}

Wide wide_of(NormSum sum) {
  Wide wide;
  for (int i = 0; i < kNormLimbs; ++i) {
    Wide limb;
    limb.word[i] = static_cast<uint32_t>(sum.limb[i]);
    limb.word[i + 1] = static_cast<uint32_t>(sum.limb[i] >> 32);
    wide.add(limb);
  }
  return wide;
}

// What a leaf can have: sums of up to 64 squares of floats of any size.
double random_leaf(std::mt19937_64& random) {
  double sum = 0;
  const int terms = static_cast<int>(random() % 3 == 0 ? 64 : 1 + random() % 3);
  const int spread = random() % 2 == 0 ? 4 : 276;
  for (int i = 0; i < terms; ++i) {
    const auto mantissa = static_cast<double>(random() % (1u << 24));
    const int exponent = static_cast<int>(random() % static_cast<uint64_t>(spread)) - 149;
    const double value = std::ldexp(mantissa, std::min(exponent, 104));
    sum += value * value;
  }
  return sum;
}

bool same(const NormSum& a, const NormSum& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

TEST(NormSum, IsTheSumOfIntegers) {
  std::mt19937_64 random(1);
  for (int times = 0; times < 300; ++times) {
    NormSum sum = {};
    Wide wide;
    for (uint64_t n = random() % 200; n > 0; --n) {
      const double leaf = random_leaf(random);
      add_leaf(sum, leaf);
      wide.add(wide_of(leaf));
    }
    EXPECT_EQ(wide_of(sum), wide);
    NormSum carried = sum;
    carry(carried);
    EXPECT_EQ(wide_of(carried), wide);
    for (int i = 0; i + 1 < kNormLimbs; ++i) EXPECT_LT(carried.limb[i], uint64_t{1} << 32);
  }
}

TEST(NormSum, ItsEnds) {
  const double least = std::ldexp(1.0, -298);
  const float greatest_float = std::numeric_limits<float>::max();
  const double greatest = 64 * static_cast<double>(greatest_float) * greatest_float;
  for (const double leaf : {0.0, least, 63 * least, std::ldexp(1.0, -246), 1.0, greatest}) {
    NormSum sum = {};
    add_leaf(sum, leaf);
    EXPECT_EQ(to_double(sum), leaf);
    EXPECT_EQ(wide_of(sum), wide_of(leaf));
  }
  // As many of the greatest as a job can have leaves, and one of the least: still there.
  NormSum sum = {};
  add_leaf(sum, greatest);
  for (int times = 0; times < 38; ++times) add(sum, NormSum(sum));
  EXPECT_EQ(to_double(sum), std::ldexp(greatest, 38));
  NormSum with_least = sum;
  add_leaf(with_least, least);
  EXPECT_FALSE(same(sum, with_least));
}

TEST(NormSum, AnyPartitionInAnyOrderGivesTheSameLimbs) {
  std::mt19937_64 random(2);
  std::vector<double> leaves(1000);
  for (double& leaf : leaves) leaf = random_leaf(random);
  NormSum whole = {};
  for (const double leaf : leaves) add_leaf(whole, leaf);
  carry(whole);
  double in_turn = 0, shuffled = 0;
  for (const double leaf : leaves) in_turn += leaf;
  bool doubles_differ = false;
  for (int times = 0; times < 50; ++times) {
    std::shuffle(leaves.begin(), leaves.end(), random);
    NormSum parts[7] = {};
    for (const double leaf : leaves) add_leaf(parts[random() % 7], leaf);
    std::shuffle(std::begin(parts), std::end(parts), random);
    NormSum sum = {};
    for (const NormSum& part : parts) add(sum, part);
    carry(sum);
    EXPECT_TRUE(same(sum, whole));
    EXPECT_EQ(to_double(sum), to_double(whole));
    shuffled = 0;
    for (const double leaf : leaves) shuffled += leaf;
    doubles_differ = doubles_differ || shuffled != in_turn;
  }
  EXPECT_TRUE(doubles_differ) << "negative control: doubles do depend on the order";
}

TEST(NormSum, ToDoubleIsWithinAUnitInTheLastPlace) {
  std::mt19937_64 random(3);
  for (int times = 0; times < 500; ++times) {
    std::vector<double> leaves(1 + random() % 100);
    for (double& leaf : leaves) leaf = random_leaf(random);
    NormSum sum = {};
    for (const double leaf : leaves) add_leaf(sum, leaf);
    std::sort(leaves.begin(), leaves.end());
    long double reference = 0;
    for (const double leaf : leaves) reference += leaf;
    ASSERT_GT(reference, 0);
    const auto relative = static_cast<double>(std::abs((to_double(sum) - reference) / reference));
    EXPECT_LE(relative, 0x1p-52) << times;
  }
}

TEST(NormSum, HostileLimbsAreJustNumbers) {
  std::mt19937_64 random(4);
  for (int times = 0; times < 2000; ++times) {
    NormSum parts[3];
    for (NormSum& part : parts) {
      for (uint64_t& limb : part.limb) limb = random() % 4 == 0 ? ~uint64_t{0} : random();
      part.nonfinite = random();
    }
    NormSum sum = {};
    for (const NormSum& part : parts) add(sum, part);
    const double value = to_double(sum);
    EXPECT_TRUE(std::isfinite(value) && value >= 0) << value;
  }
}

}  // namespace
}  // namespace elixir
