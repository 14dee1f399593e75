// What a launch refuses, and what it says where there is no GPU.

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"
#include "tests/support/matchers.h"

namespace elixir::kernels {
namespace {

// An address that no launch gets as far as to read.
void* nowhere(uintptr_t offset = 0) { return reinterpret_cast<void*>(0x1000 + offset); }

optim::UpdateSpan span_of(const void* const* grads, int n_grads, size_t numel) {
  return {.type = ComputeType::kBf16,
          .n_grads = n_grads,
          .grads = grads,
          .param = nowhere(),
          .master = nowhere(),
          .moments = {static_cast<float*>(nowhere()), static_cast<float*>(nowhere())},
          .numel = numel};
}

TEST(Launch, OfNothingIsDone) {
  const void* const grads[] = {nowhere()};
  EXPECT_TRUE(launch_adam(span_of(grads, 1, 0), {}, nullptr).ok());
}

TEST(LaunchDeathTest, WhatNoCallerMayAskIsABug) {
  const void* const grads[] = {nowhere(), nowhere(8)};
  EXPECT_DEATH((void)launch_adam(span_of(grads, 0, 1), {}, nullptr), "0 gradients, 1 to 64");
  EXPECT_DEATH((void)launch_adam(span_of(grads, 65, 1), {}, nullptr), "65 gradients, 1 to 64");
  EXPECT_DEATH((void)launch_adam(span_of(grads, 2, 1), {}, nullptr),
               "a gradient at 0x1008 is not a multiple of 16 bytes");
  EXPECT_DEATH((void)launch_squared_norm(ComputeType::kFp32, nowhere(4), 1, nullptr, nullptr),
               "values at 0x1004 is not a multiple of 16 bytes");
  EXPECT_DEATH((void)launch_squared_norm(ComputeType::kFp32, nowhere(), 1,
                                         static_cast<NormSum*>(nowhere(4)), nullptr),
               "result at 0x1004 is not a multiple of 8 bytes");
  optim::UpdateSpan summed = span_of(nullptr, 0, 1);
  summed.grad_sum = static_cast<const float*>(nowhere(4));
  EXPECT_DEATH((void)launch_adam(summed, {}, nullptr),
               "grad_sum at 0x1004 is not a multiple of 16 bytes");
}

// On a machine without a GPU alone: the addresses are not memory.
TEST(Launch, WithoutAGpuSaysSo) {
  int devices = 0;
  const cudaError_t why = cudaGetDeviceCount(&devices);
  if (why == cudaSuccess && devices > 0) GTEST_SKIP() << "there is a GPU";
  const void* const grads[] = {nowhere()};
  auto* const floats = static_cast<float*>(nowhere());
  auto* const norm = static_cast<NormSum*>(nowhere());
  const Status outcomes[] = {
      launch_adam(span_of(grads, 1, 100), {}, nullptr),
      launch_squared_norm(ComputeType::kFp32, floats, 0, norm, nullptr),
      launch_squared_norm(ComputeType::kFp32, floats, 100'000, norm, nullptr),
      // Those of several chunks lie side by side: every other one at an odd multiple of 8 bytes.
      launch_squared_norm(ComputeType::kFp32, floats, 100'000, norm + 1, nullptr)};
  for (const Status& outcome : outcomes) {
    expect_refused(outcome, Code::kInternal, {cudaGetErrorString(why)});
  }
  EXPECT_THAT(outcomes[0].message(), HasSubstr("Adam update of 100 elements"));
}

}  // namespace
}  // namespace elixir::kernels
