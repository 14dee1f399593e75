// What the threads of a launch do for a squared norm, done here by the host, in whatever order: the
// bits are those of optim::take_gradients.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/compute_type_names.h"
#include "kernels/norm_work.h"
#include "tests/kernels/norm_cases.h"

namespace elixir::kernels {
namespace {

using optim::Random;

void flush(NormSum& sum, const LimbWindow& window) {
  for (int i = 0; i < 3; ++i) {
    if (window.part[i] != 0) sum.limb[window.limb + i] += window.part[i];
  }
}

// The sum of the i-th leaf of a thread's run, its threads' lanes added as a warp adds them.
template <ComputeType kType>
double run_leaf(const std::vector<ElementOf<kType>>& grads, size_t turn, int run, int i,
                uint32_t& nonfinite) {
  LaneSums sums[kLeafThreads];
  for (int t = 0; t < kLeafThreads; ++t) {
    const int thread = run * kLeafThreads + t;
    sums[t] = square_lanes(
        load_leaf<kType>(grads.data(), grads.size(), leaf_begin(turn, thread, i), thread),
        nonfinite);
  }
  for (int distance : {2, 1}) {
    LaneSums before[kLeafThreads];
    std::copy(sums, sums + kLeafThreads, before);
    for (int t = 0; t < kLeafThreads; ++t) sums[t] = add(before[t], before[t ^ distance]);
  }
  return add_up(sums[run % kLeafThreads]);  // all have it
}

// What launch_squared_norm enqueues, with so many blocks, taken in an order of `random`.
template <ComputeType kType>
NormSum launched_norm(const std::vector<ElementOf<kType>>& grads, size_t blocks, Random& random) {
  NormSum sum = {};
  const size_t turns = norm_turns(grads.size());
  std::vector<LimbWindow> windows(blocks * kNormThreads);
  std::vector<size_t> order(turns);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = turns; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (size_t turn : order) {
    for (int thread = 0; thread < kNormThreads; ++thread) {
      uint32_t nonfinite = 0;
      const double leaf =
          run_leaf<kType>(grads, turn, thread / kLeafThreads, thread % kLeafThreads, nonfinite);
      sum.nonfinite += nonfinite;
      add_leaf(windows[turn % blocks * kNormThreads + static_cast<size_t>(thread)], leaf,
               [&](const LimbWindow& full) { flush(sum, full); });
    }
  }
  for (const LimbWindow& window : windows) flush(sum, window);
  return sum;
}

constexpr size_t kLengths[] = {0,     1,     2,     63,     64,     65,      255,      1024,
                               16383, 16384, 16385, 40'000, 65'536, 100'000, 1'500'001};

template <ComputeType kType>
void check(const std::vector<ElementOf<kType>>& grads) {
  Random random(5);
  const NormSum expected = expected_norm<kType>(grads);
  for (size_t blocks : {size_t{1}, size_t{2}, size_t{7}}) {
    EXPECT_TRUE(same_bits(launched_norm<kType>(grads, blocks, random), expected))
        << compute_type_name(kType) << " " << grads.size() << " elements, " << blocks << " blocks";
  }
}

TEST(SquaredNorm, HasTheBitsOfTakeGradientsInWhateverOrder) {
  for (size_t numel : kLengths) {
    check<ComputeType::kBf16>(gradients<ComputeType::kBf16>(numel, numel));
    check<ComputeType::kFp16>(gradients<ComputeType::kFp16>(numel, numel));
    check<ComputeType::kFp32>(gradients<ComputeType::kFp32>(numel, numel));
  }
}

// Leaves of a thread far apart: windows are left and entered all the time.
TEST(SquaredNorm, HasThemForFloatsOfEveryKind) {
  for (size_t numel : kLengths) {
    const std::vector<float> grads = gradients_of_every_kind(numel, numel);
    check<ComputeType::kFp32>(grads);
    std::vector<float> finite = grads;
    uint64_t nonfinite = 0;
    for (float& value : finite) {
      if (std::isfinite(value)) continue;
      value = 0;
      ++nonfinite;
    }
    NormSum expected = expected_norm<ComputeType::kFp32>(finite);
    expected.nonfinite = nonfinite;
    EXPECT_TRUE(same_bits(expected_norm<ComputeType::kFp32>(grads), expected)) << numel;
    if (numel > 1000) {
      EXPECT_GT(nonfinite, numel / 100);
    }
  }
}

TEST(SquaredNorm, AgreesWithAPlainLoop) {
  for (size_t numel : kLengths) {
    const auto grads = gradients<ComputeType::kBf16>(numel, numel);
    long double plain = 0;
    for (uint16_t grad : grads) {
      const long double value = optim::bf16_to_float(grad);
      plain += value * value;
    }
    Random random(1);
    const NormSum sum = launched_norm<ComputeType::kBf16>(grads, 3, random);
    EXPECT_NEAR(to_double(sum), static_cast<double>(plain), 1e-14 * static_cast<double>(plain));
    EXPECT_EQ(sum.nonfinite, 0u);
  }
}

// Negative controls: other lanes make another leaf, and one bit of one gradient is seen.
TEST(SquaredNorm, AnotherOrderInALeafAndOneBitAreSeen) {
  int unlike = 0;
  Random random(3);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<float> grads = gradients<ComputeType::kFp32>(100'000, seed);
    const NormSum norm = launched_norm<ComputeType::kFp32>(grads, 4, random);
    NormSum loops = {};
    for (size_t begin = 0; begin < grads.size(); begin += kNormLeafNumel) {
      double leaf = 0;
      for (size_t i = begin; i < std::min(begin + kNormLeafNumel, grads.size()); ++i) {
        leaf += static_cast<double>(grads[i]) * grads[i];
      }
      add_leaf(loops, leaf);
    }
    unlike += same_bits(norm, loops) ? 0 : 1;
    float& largest = *std::max_element(grads.begin(), grads.end());
    largest = std::nextafter(largest, 100.0f);
    EXPECT_FALSE(same_bits(launched_norm<ComputeType::kFp32>(grads, 4, random), norm));
  }
  EXPECT_GT(unlike, 15);
}

}  // namespace
}  // namespace elixir::kernels
