#include "client/torch_device/cuda_library.h"

#include <torch/version.h>

#include <atomic>

#include "base/dynamic_library.h"
#include "base/gpu.h"
#include "client/torch_device/cuda_on_demand.h"

namespace elixir {
namespace {

Result<CudaLibrary*> load() {
  const Result<DynamicLibrary> file =
      DynamicLibrary::load(cuda_library_search(TORCH_VERSION_MINOR));
  if (!file.ok()) return file.status();
  const auto version = file->function<uint32_t()>("elixir_cuda_library_version");
  if (!version.ok()) return version.status();
  if (const uint32_t found = (*version)(); found != kCudaLibraryVersion) {
    return error(Code::kVersionMismatch,
                 "{} has version {} and this program needs {}; install or build both together",
                 file->path(), found, kCudaLibraryVersion);
  }
  const auto make = file->function<CudaLibrary*()>("elixir_cuda_library");
  if (!make.ok()) return make.status();
  return (*make)();
}

std::atomic<bool> left_out{false};

const bool on_demand = [] {
  load_cuda_on_demand();
  return true;
}();

}  // namespace

Result<CudaLibrary*> load_cuda_library() {
  if (cuda_is_left_out()) {
    return error(Code::kUnavailable,
                 "this program started for the CPU only, and CUDA is not loaded: start it with "
                 "--device cuda, or remove prepare_torch(at::kCPU)");
  }
  static const Result<CudaLibrary*> library = load();
  return library;
}

Status prepare_cuda(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) left_out = true;
  if (type != c10::DeviceType::CUDA) return Status();
  return load_cuda_library().status();
}

bool cuda_is_left_out() { return left_out; }

}  // namespace elixir
