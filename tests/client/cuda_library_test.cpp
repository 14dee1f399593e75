// Loading libelixir_cuda.so where there is no GPU: what is said, and that nobody loads it unasked.

#include "client/torch_device/cuda_library.h"

#include <stdlib.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/gpu.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

bool is_mapped(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

void train_a_little_on_the_cpu() {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({3}, torch::requires_grad());
  (x * x).sum().backward();
}

// Each test is a process of its own: the library is loaded once in one.
class CudaLibraryDeathTest : public ::testing::Test {
 protected:
  CudaLibraryDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

// Prints the message, ends with the code.
[[noreturn]] void report(const Status& status) {
  std::cerr << status.message() << std::endl;
  std::_Exit(status.exit_code());
}

[[noreturn]] void load_named(const std::string& file) {
  ::setenv("ELIXIR_CUDA_LIBRARY", file.c_str(), 1);
  report(load_cuda_library().status());
}

TEST_F(CudaLibraryDeathTest, NotFoundNamesTheFileAndTheRemedy) {
  EXPECT_EXIT(load_named("/nowhere/libelixir_cuda.so"),
              ::testing::ExitedWithCode(static_cast<int>(Code::kUnavailable)),
              "libelixir_cuda.so was not found; looked for /nowhere/.*--device cpu");
}

TEST_F(CudaLibraryDeathTest, ABrokenFileIsNamedWithTheLoadersText) {
  const TemporaryFolder folder;
  const std::string broken = folder.write("libelixir_cuda.so", std::string(4096, 'x'));
  EXPECT_EXIT(load_named(broken), ::testing::ExitedWithCode(static_cast<int>(Code::kUnavailable)),
              "cannot be loaded: .*ELF");
}

TEST_F(CudaLibraryDeathTest, AnotherVersionIsRefusedWithBothNumbers) {
  EXPECT_EXIT(load_named(OTHER_VERSION_LIBRARY),
              ::testing::ExitedWithCode(static_cast<int>(Code::kVersionMismatch)),
              fmt::format("has version 4242 and this program needs {};", kCudaLibraryVersion));
}

// Also beside a GPU, and over tests/fake_cuda.
TEST_F(CudaLibraryDeathTest, AProgramThatSaysItIsOnTheCpuNeverLoadsCuda) {
  const auto train = [] {
    if (!prepare_cuda(at::kCPU).ok()) std::_Exit(1);
    train_a_little_on_the_cpu();
    if (load_cuda_library().ok()) std::_Exit(2);
    report(is_mapped("libtorch_cuda") || is_mapped("libelixir_cuda")
               ? Status(Code::kInternal, "CUDA is mapped")
               : Status(Code::kOk, "nothing of CUDA is mapped"));
  };
  EXPECT_EXIT(train(), ::testing::ExitedWithCode(0), "nothing of CUDA");
}

#ifdef ELIXIR_HAS_CUDA_LIBRARY

TEST_F(CudaLibraryDeathTest, IsFoundBesideTheBuild) {
  const auto load = [] {
    const Result<CudaLibrary*> library = load_cuda_library();
    if (!library.ok()) report(library.status());
    report(is_mapped("libtorch_cuda") ? Status(Code::kOk, "CUDA is mapped")
                                      : Status(Code::kInternal, "it is not"));
  };
  EXPECT_EXIT(load(), ::testing::ExitedWithCode(0), "CUDA is mapped");
}

TEST_F(CudaLibraryDeathTest, WithoutADriverEverythingSaysSo) {
  if (gpu_present()) GTEST_SKIP() << "this machine has a GPU";
  const auto ask = [] {
    CudaLibrary* cuda = *load_cuda_library();
    const CudaDevices& found = cuda->devices();
    const Status device = cuda->make_device(0, 0).status();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const Status nccl = cuda->make_nccl(store, 0, 1, std::chrono::seconds(1)).status();
    const bool same = found.devices.empty() && device.message() == found.why_none.message() &&
                      nccl.message() == found.why_none.message() && cuda->numa_node_of(0) == -1 &&
                      !found.runtime_version.empty() && !found.nccl_version.empty();
    report(same ? found.why_none : Status(Code::kInternal, "answers differ"));
  };
  EXPECT_EXIT(ask(), ::testing::ExitedWithCode(static_cast<int>(Code::kUnavailable)),
              "no NVIDIA driver is loaded in this machine or container; install NVIDIA driver 580 "
              "or newer");
}

// torch is asked for a CUDA device before anything else loaded the library. Without a GPU the
// error names the remedy; with one, or over tests/fake_cuda, it works.
TEST_F(CudaLibraryDeathTest, WhoeverIsFirstToUseCudaLoadsIt) {
  const std::function<void()> uses[] = {[] { (void)torch::ones({3}).to(at::kCUDA); },
                                        [] { (void)torch::ones({3}).to(at::Device(at::kCUDA, 0)); },
                                        [] { (void)torch::empty({3}, at::kCUDA); },
                                        [] {
                                          train_a_little_on_the_cpu();
                                          (void)torch::zeros({3}, at::kCUDA);
                                        }};
  for (const auto& use : uses) {
    const auto try_it = [&use] {
      try {
        use();
      } catch (const c10::Error& failure) {
        const bool named = std::string(failure.what()).find("CUDA") != std::string::npos;
        if (gpu_present() || !named) report(Status(Code::kInternal, failure.what()));
      }
      report(is_mapped("libtorch_cuda") ? Status(Code::kOk, "CUDA is mapped")
                                        : Status(Code::kInternal, "it is not"));
    };
    EXPECT_EXIT(try_it(), ::testing::ExitedWithCode(0), "CUDA is mapped");
  }
}

using Environment = std::vector<std::string>;

Environment environment_now() {
  Environment variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  std::sort(variables.begin(), variables.end());
  return variables;
}

// Groups that the program makes have the program's settings. Over tests/fake_cuda, or on a GPU.
TEST_F(CudaLibraryDeathTest, AGroupOfNcclLeavesTheEnvironmentAsItWas) {
  if (!gpu_present()) GTEST_SKIP() << "this machine has no GPU";
  const auto make = [] {
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", 1);  // as torchrun does
    ::unsetenv("TORCH_NCCL_ENABLE_MONITORING");
    const Environment before = environment_now();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto group = (*load_cuda_library())->make_nccl(store, 0, 1, std::chrono::seconds(1));
    if (!group.ok()) report(group.status());
    report(environment_now() == before ? Status(Code::kOk, "as it was")
                                       : Status(Code::kInternal, "another one"));
  };
  EXPECT_EXIT(make(), ::testing::ExitedWithCode(0), "as it was");
}

TEST_F(CudaLibraryDeathTest, OneRuntimeOfCuda) {
  const auto load = [] {
    if (!load_cuda_library().ok()) report(load_cuda_library().status());
    std::set<std::string> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("libcudart") != std::string::npos) found.insert(line.substr(line.find('/')));
    }
    report(found.size() == 1 ? Status(Code::kOk, "one") : Status(Code::kInternal, "not one"));
  };
  EXPECT_EXIT(load(), ::testing::ExitedWithCode(0), "one");
}

#endif

}  // namespace
}  // namespace elixir
