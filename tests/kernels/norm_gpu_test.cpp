// launch_squared_norm gives the bits of optim::take_gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/compute_type_names.h"
#include "kernels/kernels.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/norm_cases.h"

namespace elixir::kernels {
namespace {

template <ComputeType kType>
void check_norm(const std::vector<ElementOf<kType>>& grads) {
  const NormSum expected = expected_norm<kType>(grads);
  const DeviceArray<ElementOf<kType>> device(grads);
  const DeviceArray<NormSum> results(2);  // hold something else at first
  const Stream stream;
  // Twice into the first, and into the one behind it, at an odd multiple of 8 bytes.
  for (int run = 0; run < 3; ++run) {
    const int place = run / 2;
    const Status status =
        launch_squared_norm(kType, device.data(), grads.size(), results.data() + place, stream);
    ASSERT_TRUE(status.ok()) << status.message();
    stream.wait();
    const NormSum norm = results.read()[place];
    EXPECT_TRUE(same_bits(norm, expected))
        << compute_type_name(kType) << " " << grads.size() << " elements, run " << run << ": "
        << to_double(norm) << " and " << norm.nonfinite << ", expected " << to_double(expected)
        << " and " << expected.nonfinite;
  }
}

void check_every_type(size_t numel, bool odd_ones) {
  check_norm<ComputeType::kBf16>(gradients<ComputeType::kBf16>(numel, numel, odd_ones));
  check_norm<ComputeType::kFp16>(gradients<ComputeType::kFp16>(numel, numel, odd_ones));
  check_norm<ComputeType::kFp32>(gradients<ComputeType::kFp32>(numel, numel, odd_ones));
}

TEST(NormOnGpu, HasTheHostsBitsAtAnyLength) {
  for (size_t numel : {0, 1, 2, 5, 63, 64, 65, 1025, 16383, 16384, 16385, 40'000, 100'003}) {
    for (bool odd_ones : {false, true}) check_every_type(numel, odd_ones);
  }
}

// More turns than blocks: 2048 of 16384 elements.
TEST(NormOnGpu, HasTheHostsBitsOverSeveralTurns) {
  check_every_type(test_numel((size_t{80} << 20) + 20'001), true);
}

// Leaves far apart, denormals and the greatest floats.
TEST(NormOnGpu, HasTheHostsBitsForFloatsOfEveryKind) {
  check_norm<ComputeType::kFp32>(gradients_of_every_kind(test_numel(10'000'000), 1));
}

// Negative control: one gradient that changes by one unit in its last place is seen.
TEST(NormOnGpu, OneBitOfOneGradientIsSeen) {
  std::vector<float> grads = gradients<ComputeType::kFp32>(20'000, 1);
  const NormSum expected = expected_norm<ComputeType::kFp32>(grads);
  float& largest = *std::max_element(grads.begin(), grads.end());
  largest = std::nextafter(largest, 100.0f);
  const DeviceArray<float> device(grads);
  const DeviceArray<NormSum> result(1);
  const Stream stream;
  ASSERT_TRUE(
      launch_squared_norm(ComputeType::kFp32, device.data(), grads.size(), result.data(), stream)
          .ok());
  stream.wait();
  EXPECT_FALSE(same_bits(result.read()[0], expected));
}

}  // namespace
}  // namespace elixir::kernels
