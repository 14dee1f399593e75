// The squared norm: what its definition comes to, and that a launch, however its blocks are taken,
// comes to the same bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/norm_levels.h"
#include "tests/optim_cpu/states.h"

namespace elixir::kernels {
namespace {

using optim::bits_float;
using optim::Random;

template <ComputeType kType>
std::vector<ElementOf<kType>> gradients(size_t numel, uint64_t seed) {
  Random random(seed);
  std::vector<ElementOf<kType>> values(numel);
  for (ElementOf<kType>& value : values) {
    value = Format<kType>::narrow(random.uniform(random.below(100) == 0 ? 30.0f : 0.01f));
  }
  return values;
}

bool same_bits(const ShardNorm& a, const ShardNorm& b) { return memcmp(&a, &b, sizeof a) == 0; }

// A block's lanes as its warps add them: lane i takes lane i ^ distance.
ShardNorm sum_lanes(std::vector<ShardNorm> lanes) {
  for (size_t distance = 1; distance < lanes.size(); distance *= 2) {
    const std::vector<ShardNorm> before = lanes;
    for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = add(before[i], before[i ^ distance]);
  }
  return lanes[0];
}

// `order` of the blocks of one launch, as a device with so many multiprocessors might take them.
std::vector<size_t> block_order(size_t blocks, Random& random) {
  std::vector<size_t> order(blocks);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = blocks; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

ShardNorm sum_levels(std::vector<ShardNorm> sums, Random& random) {
  while (sums.size() > 1) {
    std::vector<ShardNorm> next(level_count(sums.size()));
    for (size_t block : block_order(next.size(), random)) {
      std::vector<ShardNorm> lanes(kLevelThreads);
      for (int thread = 0; thread < kLevelThreads; ++thread) {
        lanes[thread] = level_thread(sums.data(), sums.size(), block, thread);
      }
      next[block] = sum_lanes(std::move(lanes));
    }
    sums = std::move(next);
  }
  return sums[0];
}

// What launch_squared_norm enqueues.
template <ComputeType kType>
ShardNorm launched_norm(const std::vector<ElementOf<kType>>& grads, Random& random) {
  std::vector<ShardNorm> tiles(TilePart::blocks(grads.size()));
  for (size_t tile : block_order(tiles.size(), random)) {
    std::vector<ShardNorm> lanes(kNormLanes);
    for (int lane = 0; lane < kNormLanes; ++lane) {
      lanes[lane] = norm_lane<kType>(grads.data(), grads.size(), tile, lane);
    }
    tiles[tile] = sum_lanes(std::move(lanes));
  }
  return sum_levels(std::move(tiles), random);
}

constexpr size_t kLengths[] = {1,    2,    255,  256,   1023,  1024,   1025,    5000,
                               8191, 8192, 8193, 16384, 24576, 100000, 1 << 20, 1'500'001};

template <ComputeType kType>
void check_against_plain_loop(size_t numel) {
  const std::vector<ElementOf<kType>> grads = gradients<kType>(numel, numel);
  long double plain = 0;
  for (ElementOf<kType> grad : grads) {
    const long double value = Format<kType>::widen(grad);
    plain += value * value;
  }
  const ShardNorm norm = squared_norm<kType>(grads.data(), numel);
  const auto expected = static_cast<double>(plain);
  EXPECT_NEAR(norm.sum_sq, expected, 1e-14 * expected) << numel;
  EXPECT_GT(norm.sum_sq, 0) << numel;
  EXPECT_EQ(norm.nonfinite, 0U);
}

TEST(SquaredNorm, AgreesWithAPlainLoop) {
  for (size_t numel : kLengths) {
    check_against_plain_loop<ComputeType::kBf16>(numel);
    check_against_plain_loop<ComputeType::kFp16>(numel);
    check_against_plain_loop<ComputeType::kFp32>(numel);
  }
}

TEST(SquaredNorm, OfNothingIsZero) {
  const ShardNorm norm = squared_norm<ComputeType::kFp32>(nullptr, 0);
  EXPECT_EQ(norm.sum_sq, 0);
  EXPECT_EQ(norm.nonfinite, 0U);
}

TEST(SquaredNorm, CountsWhatIsNotFiniteAsZero) {
  std::vector<float> grads = gradients<ComputeType::kFp32>(20000, 1);
  std::vector<float> zeroed = grads;
  Random random(2);
  constexpr float kOdd[] = {INFINITY, -INFINITY, NAN};
  uint64_t placed = 0;
  for (size_t i = random.below(50); i < grads.size(); i += 1 + random.below(50)) {
    grads[i] = kOdd[placed++ % 3];
    zeroed[i] = 0;
  }
  const ShardNorm norm = squared_norm<ComputeType::kFp32>(grads.data(), grads.size());
  EXPECT_EQ(norm.nonfinite, placed);
  EXPECT_GT(placed, 100U);
  EXPECT_EQ(norm.sum_sq, squared_norm<ComputeType::kFp32>(zeroed.data(), zeroed.size()).sum_sq);
}

// FP32 holds what the 16-bit types hold: the order must not depend on the type.
TEST(SquaredNorm, IsThatOfTheWidenedValues) {
  for (size_t numel : kLengths) {
    const std::vector<uint16_t> grads = gradients<ComputeType::kBf16>(numel, 4);
    std::vector<float> wide;
    for (uint16_t grad : grads) wide.push_back(optim::bf16_to_float(grad));
    EXPECT_TRUE(same_bits(squared_norm<ComputeType::kBf16>(grads.data(), numel),
                          squared_norm<ComputeType::kFp32>(wide.data(), numel)))
        << numel;
  }
}

TEST(SquaredNorm, OfALaunchHasTheSameBitsInWhateverOrderBlocksRun) {
  Random random(5);
  for (size_t numel : kLengths) {
    const std::vector<uint16_t> bf16 = gradients<ComputeType::kBf16>(numel, numel);
    const ShardNorm expected = squared_norm<ComputeType::kBf16>(bf16.data(), numel);
    for (int run = 0; run < 3; ++run) {
      EXPECT_TRUE(same_bits(launched_norm<ComputeType::kBf16>(bf16, random), expected)) << numel;
    }
    const std::vector<float> fp32 = gradients<ComputeType::kFp32>(numel, numel);
    EXPECT_TRUE(same_bits(launched_norm<ComputeType::kFp32>(fp32, random),
                          squared_norm<ComputeType::kFp32>(fp32.data(), numel)))
        << numel;
  }
}

std::vector<ShardNorm> random_sums(size_t count) {
  Random random(count);
  std::vector<ShardNorm> sums(count);
  for (ShardNorm& sum : sums) sum = {std::abs(random.uniform(1.0f)) * 1e3, random.below(3)};
  return sums;
}

// More tiles than a test has gradients for: 1 to 3 levels, up to 164 G gradients.
TEST(SquaredNorm, LevelsOfSumsAreTheOneTree) {
  Random random(6);
  for (size_t count : {size_t{2}, size_t{3}, size_t{1000}, kFanIn - 1, kFanIn, kFanIn + 1,
                       2 * kFanIn, 5 * kFanIn + 77, size_t{20'000'000 / optim::kShare}}) {
    const std::vector<ShardNorm> sums = random_sums(count);
    size_t width = 1;
    while (width < count) width *= 2;
    const ShardNorm expected = norm_tree([&](size_t i) { return sums[i]; }, 0, width, count);
    EXPECT_TRUE(same_bits(sum_levels(sums, random), expected)) << count;
  }
}

// Negative controls: the tests above tell a tree from a loop, and from a tree over other leaves.
TEST(SquaredNorm, AnotherOrderIsSeen) {
  int unlike_loop = 0, unlike_tree = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> grads = gradients<ComputeType::kFp32>(100'000, seed);
    const auto leaf = [&](size_t i) {
      ShardNorm one = {0, 0};
      add_element(one, grads[i]);
      return one;
    };
    const ShardNorm norm = squared_norm<ComputeType::kFp32>(grads.data(), grads.size());
    ShardNorm loop = {0, 0};
    for (float grad : grads) add_element(loop, grad);
    unlike_loop += same_bits(norm, loop) ? 0 : 1;
    unlike_tree += same_bits(norm, norm_tree(leaf, 0, size_t{1} << 17, grads.size())) ? 0 : 1;
  }
  EXPECT_GT(unlike_loop, 5);
  EXPECT_GT(unlike_tree, 0);  // a tree errs less, and so differs less
}

TEST(SquaredNorm, WorkspaceHoldsEveryLevelButTheLast) {
  EXPECT_EQ(workspace_sums(0), 0U);
  EXPECT_EQ(workspace_sums(kTileNumel), 0U);
  EXPECT_EQ(workspace_sums(kTileNumel + 1), 2U);
  EXPECT_EQ(workspace_sums(kTileNumel * kFanIn), kFanIn);
  EXPECT_EQ(workspace_sums(kTileNumel * kFanIn + 1), kFanIn + 1 + 2);
}

}  // namespace
}  // namespace elixir::kernels
