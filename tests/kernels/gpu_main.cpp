// main() of the tests that need a GPU: without one they are skipped, with the reason.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int kSkipped = 77;  // elixir_gpu_test tells ctest

std::string why_no_gpu() {
  int devices = 0;
  const cudaError_t outcome = cudaGetDeviceCount(&devices);
  if (outcome != cudaSuccess) return cudaGetErrorString(outcome);
  if (devices == 0) return "CUDA shows no device";
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string why = testing::GTEST_FLAG(list_tests) ? "" : why_no_gpu();
  if (why.empty()) return RUN_ALL_TESTS();
  std::printf("no GPU: %s\n", why.c_str());
  if (std::getenv("ELIXIR_REQUIRE_GPU") == nullptr) return kSkipped;
  std::printf("ELIXIR_REQUIRE_GPU is set: this is a failure\n");
  return 1;
}
