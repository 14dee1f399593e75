#include "client/cuda_library/cuda_nccl.h"

#include <stdlib.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace elixir {
namespace {

// torch reads these when a group is made. Its defaults end the process when a collective fails;
// DeviceWorks asks each Work, and the watch tells all ranks first. What the user has set stays.
constexpr const char* kSettings[][2] = {
    {"TORCH_NCCL_BLOCKING_WAIT", "0"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},  // no tearing down
    {"TORCH_NCCL_ENABLE_MONITORING", "0"},     // no monitor that aborts the process
    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},       // no minute of writing traces first
    {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"},   // no exception out of torch's own thread
    // torch's thread sleeps four times as long before it lets go of the group, a minute by default
    {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0"},
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout) {
  for (const auto& [name, value] : kSettings) ::setenv(name, value, /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace elixir
