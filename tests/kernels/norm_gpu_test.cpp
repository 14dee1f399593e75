// launch_squared_norm gives the bits of norm_math.h on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "tests/kernels/device_array.h"
#include "tests/optim_cpu/states.h"

namespace elixir::kernels {
namespace {

using optim::Random;

template <ComputeType kType>
std::vector<ElementOf<kType>> gradients(size_t numel, bool odd_ones) {
  Random random(numel);
  std::vector<ElementOf<kType>> values(numel);
  for (ElementOf<kType>& value : values) {
    const uint64_t kind = random.below(1000);
    value =
        Format<kType>::narrow(kind == 0 && odd_ones   ? INFINITY
                              : kind == 1 && odd_ones ? NAN
                                                      : random.uniform(kind < 10 ? 30.0f : 0.01f));
  }
  return values;
}

bool same_bits(const ShardNorm& a, const ShardNorm& b) { return memcmp(&a, &b, sizeof a) == 0; }

template <ComputeType kType>
void check_norm(size_t numel, bool odd_ones) {
  const std::vector<ElementOf<kType>> grads = gradients<kType>(numel, odd_ones);
  const ShardNorm expected = squared_norm<kType>(grads.data(), numel);
  const DeviceArray<ElementOf<kType>> device(grads);
  const DeviceArray<std::byte> workspace(squared_norm_workspace_bytes(numel));
  const DeviceArray<ShardNorm> result(1);
  const Stream stream;
  for (int run = 0; run < 2; ++run) {
    const Status status =
        launch_squared_norm(kType, device.data(), numel, result.data(), workspace.data(), stream);
    ASSERT_TRUE(status.ok()) << status.message();
    stream.wait();
    const ShardNorm norm = result.read()[0];
    EXPECT_TRUE(same_bits(norm, expected))
        << compute_type_name(kType) << " " << numel << " elements, run " << run << ": "
        << norm.sum_sq << " and " << norm.nonfinite << ", expected " << expected.sum_sq << " and "
        << expected.nonfinite;
  }
}

TEST(NormOnGpu, HasTheHostsBitsAtAnyLength) {
  for (size_t numel : {0, 1, 2, 5, 1023, 1024, 1025, 8191, 8192, 8193, 16384, 100'003}) {
    for (bool odd_ones : {false, true}) {
      check_norm<ComputeType::kBf16>(numel, odd_ones);
      check_norm<ComputeType::kFp16>(numel, odd_ones);
      check_norm<ComputeType::kFp32>(numel, odd_ones);
    }
  }
}

TEST(NormOnGpu, HasTheHostsBitsOverThreeLevels) {
  const size_t numel = test_numel((size_t{64} << 20) + 20'001);
  check_norm<ComputeType::kBf16>(numel, true);
  check_norm<ComputeType::kFp16>(numel, false);
  check_norm<ComputeType::kFp32>(numel, true);
}

// Negative control: one gradient that changes by one unit in its last place is seen.
TEST(NormOnGpu, OneBitOfOneGradientIsSeen) {
  std::vector<float> grads = gradients<ComputeType::kFp32>(20'000, false);
  const ShardNorm expected = squared_norm<ComputeType::kFp32>(grads.data(), grads.size());
  float& largest = *std::max_element(grads.begin(), grads.end());
  largest = std::nextafter(largest, 100.0f);
  const DeviceArray<float> device(grads);
  const DeviceArray<std::byte> workspace(squared_norm_workspace_bytes(grads.size()));
  const DeviceArray<ShardNorm> result(1);
  const Stream stream;
  ASSERT_TRUE(launch_squared_norm(ComputeType::kFp32, device.data(), grads.size(), result.data(),
                                  workspace.data(), stream)
                  .ok());
  stream.wait();
  EXPECT_FALSE(same_bits(result.read()[0], expected));
}

}  // namespace
}  // namespace elixir::kernels
