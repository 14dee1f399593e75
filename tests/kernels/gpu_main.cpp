// main() of the tests that need a GPU: without one they are skipped, with the reason.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/run_tests.h"

namespace {

std::string why_no_gpu() {
  int devices = 0;
  const cudaError_t outcome = cudaGetDeviceCount(&devices);
  if (outcome != cudaSuccess) return cudaGetErrorString(outcome);
  if (devices == 0) return "CUDA shows no device";
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string why = why_no_gpu();
  if (!why.empty() && std::getenv("ELIXIR_REQUIRE_GPU") != nullptr) {
    std::printf("no GPU: %s; ELIXIR_REQUIRE_GPU is set: this is a failure\n", why.c_str());
    return 1;
  }
  return elixir::test::run_tests(argc, argv, why.empty() ? "" : "no GPU: " + why);
}
