#include "client/cuda_library/cuda_nccl.h"

#include <stdlib.h>

#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace elixir {
namespace {

// torch reads these when a group is made. Its defaults, and what torchrun sets, end the process
// when a collective fails; DeviceWorks asks each Work, and the watch tells all ranks first.
constexpr const char* kSettings[][2] = {
    {"TORCH_NCCL_BLOCKING_WAIT", "0"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},  // no tearing down
    {"TORCH_NCCL_ENABLE_MONITORING", "0"},     // no monitor that aborts the process
    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},       // no minute of writing traces first
    {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"},   // no exception out of torch's own thread
    // torch's thread sleeps four times as long before it lets go of the group, a minute by default
    {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0"},
};

// While it lives the environment has kSettings. Groups that the program makes have its own.
class ForcedSettings {
 public:
  ForcedSettings() {
    for (size_t i = 0; i < std::size(kSettings); ++i) {
      const auto& [name, value] = kSettings[i];
      if (const char* const before = std::getenv(name)) before_[i] = before;
      ::setenv(name, value, /*overwrite=*/1);
    }
  }
  ~ForcedSettings() {
    for (size_t i = 0; i < std::size(kSettings); ++i) {
      const char* const name = kSettings[i][0];
      before_[i] ? ::setenv(name, before_[i]->c_str(), /*overwrite=*/1) : ::unsetenv(name);
    }
  }
  ForcedSettings(const ForcedSettings&) = delete;

 private:
  std::optional<std::string> before_[std::size(kSettings)];
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout) {
  const ForcedSettings forced;
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace elixir
